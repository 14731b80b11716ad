# Diambra Agents

from flows import main, run


def check_configs(cfg):
    if "diambra" not in cfg.env.wrapper._target_:
        raise ValueError(
            f"You must choose a DIAMBRA environment. "
            f"Got '{cfg.env.id}' provided by '{cfg.env.wrapper._target_.split('.')[-2]}'."
        )


@main
def train(cfg):
    check_configs(cfg)
    run(cfg)


if __name__ == "__main__":
    train()
