"""The order of the stages is told by the flow alone: the documents and dvc.yaml are held against flows/train.py."""

from __future__ import annotations

import ast

import yaml

from tests.project.test_documents import ROOT, blocks

STAGES = {path.stem for path in (ROOT / "flows/stages").glob("*.py")} - {"__init__", "summary"}
Order = list["str | list[str]"]  # a list is the loop: what may be due behind the train task


def flow_function(source: str) -> ast.FunctionDef:
    """The innermost function that calls the stages, without its docstring."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    *_, function = [f for f in functions if "register_model" in {called(node) for node in ast.walk(f)}]
    function.body = function.body[ast.get_docstring(function) is not None :]
    return function


def called(node: ast.AST) -> str | None:
    return getattr(node.func, "id", None) or getattr(node.func, "attr", None) if isinstance(node, ast.Call) else None


def order_of(body: list[ast.stmt]) -> Order:
    found: Order = []
    for node in body:
        if isinstance(node, ast.While):
            assert {called(n) for n in ast.walk(node.test)} >= {"advance"}, "the loop over what the train task gives"
            found.append([stage for stage in order_of(node.body) if isinstance(stage, str)])
        elif isinstance(node, (ast.With, ast.If)):
            found += order_of(node.body)
        else:
            found += [str(called(n)).replace("_", "-") for n in ast.walk(node) if called(n) in STAGES]
    return found


def diagram(order: Order) -> str:
    """The order as a mermaid flow chart."""
    loop = next(stage for stage in order if isinstance(stage, list))
    before, after = order[: order.index(loop)], [str(stage) for stage in order[order.index(loop) + 1 :]]
    after = [f"last[last {stage}]" if stage in loop else stage for stage in after]
    lines = [" --> ".join([*map(str, before), "train"])]
    lines += [f"train -- due --> {stage} --> train" for stage in loop]
    lines += [" --> ".join(["train -- done", *after])]
    return "".join(f"{line}\n" for line in ["flowchart LR", *[f"    {line}" for line in lines]])


PAGE = (ROOT / "docs/pipelines.md").read_text()
FLOW = flow_function((ROOT / "flows/train.py").read_text())
ORDER = order_of(FLOW.body)


def test_stage_train_does_what_is_due_as_the_flow_does() -> None:
    """DVC's stage goes from boundary to boundary by itself: the same calls in the same order."""
    source = ast.parse((ROOT / "flows/stages/train.py").read_text())
    loops = [next(n for n in ast.walk(tree) if isinstance(n, ast.While)) for tree in (source, FLOW)]
    assert ast.unparse(loops[0]) == ast.unparse(loops[1])


def test_pipelines_page_draws_the_stages_as_the_flow_calls_them() -> None:
    assert blocks(PAGE, "mermaid") == [diagram(ORDER)]


def test_pipelines_page_shows_the_flow_as_it_is() -> None:
    [shown] = [flow_function(block) for block in blocks(PAGE, "python") if "@flow" in block]
    assert ast.unparse(shown) == ast.unparse(FLOW)


def test_dvc_runs_the_stages_one_behind_the_other_as_the_flow_does() -> None:
    """Each stage needs what the one before it makes, and nothing that a later one makes."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    assert list(stages) == ["train" if isinstance(stage, list) else stage for stage in ORDER]
    made: list[set[str]] = []
    for name, stage in stages.items():
        needed = {path for path in stage["do"]["deps"] if path.startswith("runs/")}
        assert needed <= set().union(*made), name
        assert not made or needed & made[-1], name
        outputs = [output for kind in ("outs", "metrics", "plots") for output in stage["do"].get(kind, [])]
        made.append({output if isinstance(output, str) else next(iter(output)) for output in outputs})
