"""Programs that write golden values: results of other implementations, for the tests of tests/golden.

Tests read only the files that these programs write; the other implementations are not installed. Run a program from the
root of the repository, in a virtual environment (Python 3.11) that has its library:

    pip install torch==2.13.0 stable-baselines3==2.9.2 sb3-contrib==2.9.2
    pip install torch==2.13.0 sheeprl==0.8.4 'setuptools<81'
    pip install torch==2.13.0 torchrl==0.14.1
    pip install torch==2.13.0 rl8==1.0.0 torchrl==0.14.1

    python -m tests.golden.makers.ppo            write the files
    python -m tests.golden.makers.ppo --check    compare the files with new results, and write nothing

| library | programs |
|---|---|
| Stable-Baselines3 and sb3-contrib | ppo; then a2c, ppo_recurrent, sac, crossq |
| Stable-Baselines3, sb3-contrib, sbx-rl and rl-zoo3 | sb3_names (reads them) |
| SheepRL | sac_ae, dreamer_v1, dreamer_v2, dreamer_v3, dreamer_v3_5, p2e (Dreamer V3), p2e_older (V1 and V2) |
| SheepRL | config_files, dreamer_updates, diambra (read it) |
| TorchRL | dreamer_v3_torchrl |
| rl8 | rl8_ppo; rl8_tasks (its docstring names the examples that it needs) |
| the author's code of Dreamer V3 | dreamer_v3_author, after dreamer_v3_torchrl; dreamer_v3_5_author (read them) |

Results depend slightly on the processor: those of float64 by 1e-14, initial weights of SB3 by 1e-6.
"""
