"""Progress line, read back as a terminal would draw it."""

from __future__ import annotations

import functools
import io
import itertools
import re
import threading
import time
from pathlib import Path

import pytest

from flows.cli.progress import Progress, show_progress
from flows.report.sentences import duration
from flows.runs.listeners import emit
from rlcore.store.directory import RunDirectory


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    encoding = "utf-8"

    def __init__(self, tty: bool = True) -> None:
        super().__init__()
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty

    def screen(self) -> list[str]:
        """Return the lines that a terminal would show. \\r returns to the start of the line, ESC[K clears the line."""
        rows = [""]
        text = re.sub(r"\x1b\[\d*m", "", self.getvalue())
        for piece in re.split(r"(\r|\n|\x1b\[K)", text):
            if piece == "\n":
                rows.append("")
            elif piece in ("\r", "\x1b[K"):
                rows[-1] = "" if piece == "\x1b[K" else rows[-1]
            elif piece:
                rows[-1] = piece + rows[-1][len(piece) :]
        return rows


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def run(progress: Progress, clock: Clock, total: int, seconds: float, iterations: int) -> None:
    for i in range(1, iterations + 1):
        clock.now = seconds * i / iterations
        progress.update(total * i // iterations, 187.3, total / seconds, clock.now, 1)


def test_progress_shows_one_line_on_terminal() -> None:
    out, clock = Terminal(), Clock()
    progress = Progress(65_536, out, clock)
    # 12,345 of 65,536 is 18.8 %; 53,191 left at 8,412 a second take 6.3 s.
    progress.update(12_345, 187.3, 8_412.0, 12_345 / 8_412, 1)
    (line,) = out.screen()
    assert re.fullmatch(r"train  ━{3}─{13}  12,345/65,536  18%  return 187\.3  8,412 steps/s  ETA 0:06", line)


def test_progress_redraws_at_most_10_times_per_second() -> None:
    out, clock = Terminal(), Clock()
    run(Progress(100_000, out, clock), clock, 100_000, seconds=5.0, iterations=5_000)
    assert len(out.screen()) == 1
    assert 25 <= out.getvalue().count("\r") <= 52


def test_progress_close_draws_last_state() -> None:
    out, clock = Terminal(), Clock()
    progress = Progress(1_000, out, clock)
    progress.update(100, None, 100.0, 1.0, 1)
    progress.update(200, None, 100.0, 2.0, 1)  # too soon after the first to be drawn
    assert "100/1,000" in out.screen()[0]
    progress.close()
    progress.close()
    assert "200/1,000" in out.screen()[0]
    assert out.screen()[1:] == [""]


def test_progress_shows_duration_at_end() -> None:
    out, clock = Terminal(), Clock()
    progress = Progress(1_000, out, clock)
    progress.update(1_000, 5.0, 10.0, 100.0, 1)
    assert out.screen()[0].endswith("took 1:40")
    assert "100%" in out.screen()[0]


def test_progress_without_budget_shows_steps_and_elapsed_time() -> None:
    terminal, clock = Terminal(), Clock()
    progress = Progress(None, terminal, clock)
    progress.update(12_345, 3.5, 100.0, 75.0, updates=10)
    (line,) = terminal.screen()
    assert re.sub(r" *─+ *", "  ", line) == "train  12,345 steps  return 3.50  100 steps/s  1:15"


def test_progress_line_fits_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in range(2, 130):
        monkeypatch.setenv("COLUMNS", str(columns))
        out = Terminal()
        Progress(10_000, out, Clock()).update(1_234, 187.3, 8_412.0, 1.0, 1)
        (line,) = out.screen()
        assert len(line) < columns  # a character in the last column would wrap
        assert line.startswith("train  1,234/10,000"[: columns - 1]) or "━" in line
        # Two spaces, a bar of 5 to 16 columns, and a free last column.
        bar = columns - len("train  1,234/10,000  12%  return 187.3  8,412 steps/s  ETA 0:01") - 3
        assert len(re.findall("[━─]", line)) == (min(16, bar) if bar >= 5 else 0)


def test_progress_note_appears_above_line() -> None:
    out, clock = Terminal(), Clock()
    progress = Progress(1_000, out, clock)
    progress.update(100, 1.0, 100.0, 1.0, 1)
    progress.note("evaluation at 100 policy steps: greedy 21.0")
    note, line = out.screen()
    assert note == "evaluation at 100 policy steps: greedy 21.0"
    assert line.startswith("train ")
    assert "100/1,000" in line


@pytest.mark.parametrize("forbidden", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {}])
def test_progress_uses_color_only_if_supported(forbidden: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in forbidden.items():
        monkeypatch.setenv(name, value)
    out = Terminal()
    Progress(1_000, out, Clock()).update(500, 1.0, 100.0, 1.0, 1)
    assert ("\x1b[36m" in out.getvalue()) == (not forbidden)


def test_progress_writes_plain_lines_to_file() -> None:
    out, clock = Terminal(tty=False), Clock()
    progress = Progress(100_000, out, clock)
    run(progress, clock, 100_000, seconds=8.0, iterations=500)
    progress.note("saved")
    progress.close()
    text = out.getvalue()
    assert not re.search(r"[\r\x1b\b]", text)
    lines = text.splitlines()
    assert lines[-1] == "saved"
    assert lines[-2] == "train  100,000/100,000  100%  return 187.3  12,500 steps/s  took 0:08"
    assert 18 <= len(lines) - 1 <= 22  # one each 5 %
    assert text.endswith("\n")


def test_progress_in_file_has_10_second_minimum_interval() -> None:
    out, clock = Terminal(tty=False), Clock()
    progress = Progress(10**9, out, clock)
    for second in range(3600):
        clock.now = float(second)
        progress.update(second + 1, 0.0, 1.0, clock.now, 1)
    times = [int(line.split()[1].split("/")[0].replace(",", "")) for line in out.getvalue().splitlines()]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert set(gaps[:15]) == {10}
    assert min(gaps) == 10
    assert 150 <= gaps[-1] <= 200  # a twentieth of an hour


def test_progress_eta_follows_recent_speed() -> None:
    out, clock = Terminal(), Clock()
    progress = Progress(20_000, out, clock)
    for second in range(1, 11):  # 1,000 steps a second for 10 s, then 10 a second for 200 s
        progress.update(1_000 * second, 0.0, 1_000.0, float(second), 1)
    for second in range(11, 211):
        clock.now = float(second)
        progress.update(10_000 + 10 * (second - 10), 0.0, 50.0, float(second), 1)
    # 8,000 steps are left: 800 s at the present speed, 140 s at the average of 57 a second.
    minutes, seconds = re.search(r"ETA (\d+):(\d+)", out.screen()[0]).groups()
    assert 700 <= 60 * int(minutes) + int(seconds) <= 800


def test_progress_eta_ignores_steps_before_first_update() -> None:
    out, clock = Terminal(), Clock()
    progress = Progress(10_000, out, clock)
    for second in range(1, 10):  # the replay buffer is filled at 100 steps per second
        clock.now = float(second)
        progress.update(100 * second, 0.0, 100.0, clock.now, 0)
    assert out.screen()[0].endswith("ETA -")
    progress.update(1_000, 0.0, 100.0, 10.0, 1)  # the first gradient step
    for second in range(11, 14):  # training at 10 steps per second
        clock.now = float(second)
        progress.update(1_000 + 10 * (second - 10), 0.0, 50.0, clock.now, 10 * (second - 10))
    assert out.screen()[0].endswith("ETA 14:57")  # 8,970 steps are left


def test_progress_eta_ignores_steps_before_resume() -> None:
    out = Terminal()
    progress = Progress(20_000, out, Clock())
    progress.update(10_000, 0.0, 100.0, 100.0, 1)
    assert out.screen()[0].endswith("ETA 1:40")


def test_progress_shows_no_return_before_first_episode_end() -> None:
    out = Terminal(tty=False)
    Progress(1_000, out, Clock()).update(10, None, 0.0, 0.0, 1)
    assert out.getvalue() == "train  10/1,000  1%  return -  0 steps/s  ETA -\n"


def test_progress_ignores_closed_terminal() -> None:
    out = Terminal()
    progress = Progress(1_000, out, Clock())
    out.close()
    progress.live = True
    progress.update(10, 1.0, 1.0, 1.0, 1)
    progress.note("still here")
    progress.close()


def test_progress_bar_is_ascii_for_ascii_stream() -> None:
    out = Terminal()
    out.encoding = "ascii"
    Progress(1_000, out, Clock()).update(500, 1.0, 100.0, 1.0, 1)
    assert "========--------" in out.screen()[0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (6.3, "0:06"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00"), (36_061, "10:01:01")],
)
def test_duration_formats_hours_minutes_seconds(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def train_a_tenth(progress: Progress) -> str:
    progress.update(100, 1.0, 100.0, 1.0, 1)
    return "train  ━━──────────────  100/1,000  10%  return 1.00  100 steps/s  ETA 0:09"


def test_progress_work_replaces_training_line_until_done() -> None:
    out, clock = Terminal(), Clock()
    progress = Progress(1_000, out, clock)
    training = train_a_tenth(progress)
    for done in range(38):
        clock.now = 10.0 + done
        progress.work("final evaluation", done, 100)
    # 37 of 100 in 37 s: 63 s for the rest; 37 % of a bar of 16.
    assert out.screen() == ["final evaluation  ━━━━━━──────────  37/100 episodes  ETA 1:03"]
    progress.note("the mirror is away")
    assert out.screen()[1].startswith("final evaluation ")
    progress.work("final evaluation", 100, 100)
    assert out.screen() == ["the mirror is away", training]


def test_show_progress_counts_gradient_steps_of_long_update(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, clock = RunDirectory(tmp_path), Clock()
    monkeypatch.setattr("flows.cli.progress.Progress", functools.partial(Progress, clock=clock))
    run.config.write_text("algo: {name: ppo, total_steps: 1000}\nenv: {id: CartPole-v1}")
    with show_progress(run):
        for done in (10, 110):
            emit("work", {"doing": "update", "done": done, "total": 1000, "unit": "gradient steps"})
            clock.now += 12.0
    # 100 in 12 s: 107 s for 890.
    assert capsys.readouterr().err.splitlines() == ["update  110/1,000 gradient steps  ETA 1:47"]


@pytest.mark.parametrize("trained", [True, False])
def test_progress_close_removes_unfinished_work(trained: bool) -> None:
    out, clock = Terminal(), Clock()
    progress = Progress(1_000, out, clock)
    training = [train_a_tenth(progress)] if trained else []
    clock.now = 60.0
    progress.work("champions compared", 3, 200)
    assert out.screen() == ["champions compared  ────────────────  3/200 episodes"]
    progress.close()
    assert out.screen() == [*training, ""]


@pytest.mark.parametrize("tty", [True, False])
def test_progress_writes_nothing_after_interruption(tty: bool) -> None:
    out, clock = Terminal(tty), Clock()
    progress = Progress(1_000, out, clock)
    train_a_tenth(progress)
    progress.update(200, 1.0, 100.0, 2.0, 1)  # too soon for a further line
    progress.on_event("interrupted", {"doing": "saved at policy step 210"})
    progress.close()
    *before, training, saved, end = out.screen()
    assert training.startswith("train  ") and "200/1,000  20%" in training
    assert (saved, end) == ("saved at policy step 210", "")
    assert len(before) == (0 if tty else 1)


def test_progress_work_in_file_every_10_seconds() -> None:
    out, clock = Terminal(tty=False), Clock()
    progress = Progress(1_000, out, clock)
    progress.update(100, 1.0, 100.0, 1.0, 1)
    for doing, seconds in (("evaluation", 9), ("final evaluation", 35)):
        for done in range(seconds):
            clock.now += 1.0
            progress.work(doing, done, seconds)
        progress.work(doing, seconds, seconds)
    progress.close()
    assert out.getvalue().splitlines() == [
        "train  100/1,000  10%  return 1.00  100 steps/s  ETA 0:09",
        "final evaluation  10/35 episodes  ETA 0:25",
        "final evaluation  20/35 episodes  ETA 0:15",
        "final evaluation  30/35 episodes  ETA 0:05",
    ]


def test_show_progress_prints_events_as_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory(tmp_path)
    run.config.write_text("algo: {name: ppo, total_steps: 1000}\nenv: {id: CartPole-v1}")
    with show_progress(run):
        emit("progress", {"policy_steps": 100, "total_steps": 1000, "updates": 1, "return": 1.0, "elapsed": 2.0})
        emit("checkpoint", {"policy_steps": 100})
        emit(
            "work", {"doing": "evaluation", "done": 3, "total": 10, "unit": "episodes"}
        )  # too short for a line in a file
        emit("stage", {"doing": "stopped early"})
        emit("progress", {"policy_steps": 101, "total_steps": 1000, "updates": 1, "return": None, "elapsed": 2.0})
    assert capsys.readouterr().err.splitlines() == [
        "train  100/1,000  10%  return 1.00  50 steps/s  ETA 0:18",
        "stopped early",
        "train  101/1,000  10%  return -  50 steps/s  ETA 0:18",
    ]


def test_progress_notes_of_threads_do_not_mix() -> None:
    class OneByOne(Terminal):
        def write(self, text: str) -> int:
            for character in text:
                super().write(character)
                time.sleep(0)  # switch to another thread
            return len(text)

    out = OneByOne(tty=False)
    progress = Progress(1_000, out, Clock())
    threads = [threading.Thread(target=lambda c=c: [progress.note(c * 20) for _ in range(20)]) for c in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(out.getvalue().splitlines()) == sorted(c * 20 for c in "abcd" for _ in range(20))


@pytest.mark.parametrize("tty", [True, False])
def test_progress_escapes_control_characters_of_names(tty: bool) -> None:
    terminal, clock = Terminal(tty), Clock()
    progress = Progress(100, terminal, clock)
    progress.note("game \x1b[2J over")
    clock.now = 100.0
    progress.work("evaluation of \x1b[5m", 0, 10)
    clock.now = 200.0
    progress.work("evaluation of \x1b[5m", 1, 10)
    assert not re.search(r"\x1b\[(2J|5m)", terminal.getvalue())
    assert "game \\x1b[2J over" in terminal.getvalue()
    assert "evaluation of \\x1b[5m" in terminal.getvalue()
