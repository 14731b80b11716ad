# Diambra Agents

from flows import evaluation, main


@main(config_name="eval_config")
def run(cfg):
    evaluation(cfg, episodes=2)


if __name__ == "__main__":
    run()
