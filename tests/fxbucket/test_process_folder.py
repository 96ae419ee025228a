"""Files that go with the process: also when it is killed, and never into a folder that somebody else made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HEAD = "import os, shutil, signal, sys, time\nfrom pathlib import Path\nfrom fxbucket.process_folder import process_folder\n"


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HEAD + code],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"TMPDIR": str(folder)},
    )


def test_a_folder_is_private_the_same_each_time_and_gone_at_the_end(tmp_path: Path):
    done = run(
        "made = process_folder('a')\n"
        "(made / 'file').write_text('')\n"
        "print(made == process_folder('a') != process_folder('b'), made.parent.stat().st_mode & 0o077)",
        tmp_path,
    )
    assert done.stdout == "True 0\n", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_child_leaves_its_parents_folder_alone(tmp_path: Path):
    code = (
        "made = process_folder('a')\n"
        "if os.fork() == 0:\n    mine = process_folder('a')\n    print(mine != made, flush=True)\n    sys.exit()\n"
        "os.wait()\nprint(made.is_dir())"
    )
    assert run(code, tmp_path).stdout == "True\nTrue\n"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_removed_or_made_by_others_is_left_for_another(tmp_path: Path):
    done = run(
        "made = process_folder('a')\n"
        "shutil.rmtree(made.parent)\n"
        "made.parent.mkdir()\n"
        "made.parent.chmod(0o777)\n"
        "print(process_folder('a').is_dir(), process_folder('a').parent != made.parent, list(made.parent.iterdir()))",
        tmp_path,
    )
    assert done.stdout == "True True []\n", done.stderr


def test_what_a_killed_process_left_goes_and_what_a_living_one_has_stays(tmp_path: Path):
    killed = run("process_folder('a')\nos.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    run("process_folder('a')", tmp_path)
    assert left.is_dir()  # so young that its process may not have locked it yet
    command = [sys.executable, "-c", HEAD + "print(process_folder('a').parent, flush=True)\ntime.sleep(100)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}) as living:
        assert living.stdout is not None
        kept = Path(living.stdout.readline().strip())
        for folder in (left, kept):
            os.utime(folder / "alive", (time.time() - 3600, time.time() - 3600))
        run("process_folder('a')", tmp_path)
        assert not left.exists()
        assert (kept / "a").is_dir()
        living.kill()
