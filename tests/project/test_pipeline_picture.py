"""flows/train.py defines the order of the stages; the documents and dvc.yaml are compared with it."""

from __future__ import annotations

import ast

import yaml

from tests.project.test_documents import ROOT, blocks

STAGES = {path.stem for path in (ROOT / "flows/stages").glob("*.py")} - {"__init__", "summary"}
Order = list["str | list[str]"]  # a list is the loop: the stages that may be due after the train task


def flow_function(source: str) -> ast.FunctionDef:
    """Return the innermost function that calls the stages, without its docstring."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    *_, function = [f for f in functions if "register_model" in {called_name(node) for node in ast.walk(f)}]
    function.body = function.body[ast.get_docstring(function) is not None :]
    return function


def training_loop(source: str) -> ast.While:
    """Return the loop of the function `training_loop`."""
    [function] = [n for n in ast.walk(ast.parse(source)) if getattr(n, "name", "") == "training_loop"]
    [loop] = [node for node in ast.walk(function) if isinstance(node, ast.While)]
    return loop


def called_name(node: ast.AST) -> str | None:
    return getattr(node.func, "id", None) or getattr(node.func, "attr", None) if isinstance(node, ast.Call) else None


def order_of(body: list[ast.stmt]) -> Order:
    found: Order = []
    for node in body:
        if called_name(getattr(node, "value", node)) == "training_loop":
            found.append([stage for stage in order_of(LOOP.body) if isinstance(stage, str)])
        elif isinstance(node, (ast.With, ast.If)):
            found += order_of(node.body)
        else:
            found += [str(called_name(n)).replace("_", "-") for n in ast.walk(node) if called_name(n) in STAGES]
    return found


def diagram(order: Order) -> str:
    """Return the order as a mermaid flow chart."""
    loop = next(stage for stage in order if isinstance(stage, list))
    before, after = order[: order.index(loop)], [str(stage) for stage in order[order.index(loop) + 1 :]]
    after = [f"last[last {stage}]" if stage in loop else stage for stage in after]
    lines = [" --> ".join([*map(str, before), "train"])]
    lines += [f"train -- due --> {stage} --> train" for stage in loop]
    lines += [" --> ".join(["train -- done", *after])]
    return "".join(f"{line}\n" for line in ["flowchart LR", *[f"    {line}" for line in lines]])


PAGE = (ROOT / "docs/pipelines.md").read_text()
FLOW = flow_function((ROOT / "flows/train.py").read_text())
LOOP = training_loop((ROOT / "flows/stages/train.py").read_text())
ORDER = order_of(FLOW.body)


def test_training_loop_is_defined_once() -> None:
    """Flow, stage and reproduction call `training_loop`: no other loop of flows/ executes what is due."""
    loops = {
        path.name
        for path in (ROOT / "flows").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.While, ast.For)) and ".due" in ast.unparse(node)
    }
    assert loops == {"train.py"}
    callers = [path for path in (ROOT / "flows").rglob("*.py") if " training_loop(run" in path.read_text()]
    assert {str(path.relative_to(ROOT)) for path in callers} == {
        "flows/train.py",
        "flows/reproduce.py",
        "flows/stages/train.py",
    }


def test_pipelines_page_draws_stages_of_flow() -> None:
    assert blocks(PAGE, "mermaid") == [diagram(ORDER)]


def test_pipelines_page_shows_source_of_flow() -> None:
    [shown] = [flow_function(block) for block in blocks(PAGE, "python") if "@flow" in block]
    assert ast.unparse(shown) == ast.unparse(FLOW)
    [shown_loop] = [training_loop(block) for block in blocks(PAGE, "python") if "def training_loop" in block]
    assert ast.unparse(shown_loop) == ast.unparse(LOOP)


def test_dvc_stages_depend_on_previous_stage() -> None:
    """Each stage needs an output of the previous stage, and no output of a later one."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    assert list(stages) == ["train" if isinstance(stage, list) else stage for stage in ORDER]
    previous_outputs: list[set[str]] = []
    for name, stage in stages.items():
        needed = {path for path in stage["do"]["deps"] if path.startswith("runs/")}
        assert needed <= set().union(*previous_outputs), name
        assert not previous_outputs or needed & previous_outputs[-1], name
        outputs = [output for kind in ("outs", "metrics", "plots") for output in stage["do"].get(kind, [])]
        previous_outputs.append({output if isinstance(output, str) else next(iter(output)) for output in outputs})
