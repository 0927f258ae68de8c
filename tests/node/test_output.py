"""What a container writes arrives whole, and its end is told as it was."""

from __future__ import annotations

import sys

PYTHON = sys.executable if sys.prefix == sys.base_prefix else f"{sys.base_prefix}/bin/python3"


def python(code: str) -> tuple[str, ...]:
    return (PYTHON, "-u", "-c", code)


def test_a_command_prints_and_ends(agent, server):
    server.run(1, "/bin/sh", "-c", "echo hello; echo trouble >&2; exit 3")
    seen = server.finish(1)
    assert seen.text(1) == b"hello\n"
    assert seen.text(2) == b"trouble\n"
    assert (seen.exited[0].code, seen.exited[0].signal, seen.exited[0].oom_killed) == (3, 0, False)
    assert seen.released[0].remains == ""


def test_the_last_bytes_without_newline_survive_os_exit(agent, server):
    server.run(1, *python("import os, sys; sys.stdout.write('begun'); sys.stdout.flush(); os.write(1, b' and left'); os._exit(1)"))
    seen = server.finish(1)
    assert seen.text(1) == b"begun and left"
    assert seen.exited[0].code == 1


def test_the_last_bytes_survive_kill_9(agent, server):
    server.run(1, *python("import os, signal; os.write(1, b'last words'); os.kill(os.getpid(), signal.SIGKILL)"))
    seen = server.finish(1)
    assert seen.text(1) == b"last words"
    assert (seen.exited[0].code, seen.exited[0].signal, seen.exited[0].oom_killed) == (0, 9, False)


def test_bytes_that_are_not_utf_8_and_split_characters_survive(agent, server):
    emoji = "🐙".encode()
    server.run(1, *python(
        f"import os, time; os.write(1, b'\\x80' + {emoji[:2]!r}); time.sleep(0.05); os.write(1, {emoji[2:]!r} + b'\\r50%\\r100%')"))
    assert server.finish(1).text(1) == b"\x80" + emoji + b"\r50%\r100%"


def test_a_line_of_10_mb_arrives_in_order(agent, server):
    server.run(1, *python("print('x' * 10_000_000 + 'end')"))
    text = server.finish(1).text(1)
    assert len(text) == 10_000_004
    assert text.endswith(b"xend\n")


def test_a_command_that_does_not_exist_is_an_end_with_a_sentence(agent, server):
    seen = server.run(1, "/no/such/program")
    assert seen.exited[0].never_started
    assert "/no/such/program" in seen.exited[0].sentence
    server.finish(1)


def test_output_written_while_the_server_was_away_arrives(agent, server):
    server.acknowledging = False
    server.run(1, "/bin/sh", "-c", "echo one; while [ ! -e /tmp/go ] && [ ! -e $HOME/go ]; do sleep 0.05; done; echo two")
    server.wait(1, 0, lambda seen: b"one" in seen.text())
    server.down()
    server.up()
    server.acknowledging = True
    server.until(lambda: len(server.registers) == 2, agent.log)
    adopted = server.registers[1].adopted
    assert [(a.assignment, a.rank, a.task_id, a.ended) for a in adopted] == [(1, 0, "ta-1-0", False)]
    server.stop(1, signal=9)
    seen = server.finish(1)
    assert seen.text() == b"one\n"
    assert seen.exited[0].signal == 9
