"""Networks that several families of algorithms share, such as MLPs, CNNs, recurrent cells and policy heads."""
