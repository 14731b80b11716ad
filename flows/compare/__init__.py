"""Sides compared: gathered, counted, ranked or not, drawn, written as one page."""
