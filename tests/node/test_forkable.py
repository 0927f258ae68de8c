"""When a container may be forked from a zygote: everything that was read before must be as it would be read now."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.node.forkable import Zygote, split_layers, why_base_not, why_not

ENVIRONMENT = {"HOME": "/root", "PYTHONPATH": "/root:/pkg", "LANG": "C.UTF-8", "MODAL_IS_REMOTE": "1"}
ZYGOTE = Zygote("z.sock", frozenset({"modal", "queue", "google"}), frozenset({"HOME", "MODAL_LOGLEVEL", "MODAL_IS_REMOTE"}),
                ENVIRONMENT, "/root", 1)


def layer(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("")
    return folder


@pytest.mark.parametrize("path", ["root/train.py", "root/data/queue.py", "root/my_package/__init__.py", "root/notes.txt"])
def test_a_program_of_ones_own_is_forked(tmp_path, path):
    assert why_not(ZYGOTE, ENVIRONMENT | {"MINE": "1", "MODAL_TASK_ID": "ta-1"}, [layer(tmp_path, path)]) == ""


@pytest.mark.parametrize(("path", "word"), [
    ("root/queue.py", "hides the module queue"), ("root/google/own.py", "hides the module google"), ("root/modal/__init__.py", "modal"),
    ("root/sitecustomize.py", "sitecustomize"), ("root/.modal.toml", "settings"), ("root/.local/lib/x.py", "settings"),
    ("usr/lib/python3.11/queue.py", "/usr"), ("etc/ssl/openssl.cnf", "/etc")])
def test_what_an_import_would_have_found_first_is_started(tmp_path, path, word):
    assert word in why_not(ZYGOTE, ENVIRONMENT, [layer(tmp_path, path)])


@pytest.mark.parametrize(("changed", "word"), [
    ({"MODAL_LOGLEVEL": "DEBUG"}, "MODAL_LOGLEVEL is 'DEBUG'"), ({"PYTHONHASHSEED": "0"}, "PYTHONHASHSEED"), ({"TZ": "UTC"}, "TZ"),
    ({"LD_PRELOAD": "x.so"}, "LD_PRELOAD"), ({"LANG": "de"}, "LANG is 'de'"), ({"PYTHONPATH": "/mine"}, "PYTHONPATH")])
def test_variables_that_were_read_before_must_be_the_same(changed, word):
    assert word in why_not(ZYGOTE, ENVIRONMENT | changed, [])


def test_a_variable_that_is_missing_counts_as_another():
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "MODAL_IS_REMOTE"}
    assert "MODAL_IS_REMOTE is None" in why_not(ZYGOTE, environment, [])


def test_a_plain_process_has_a_home_of_its_own():
    own = {"HOME": "/node/containers/7-0/root/root", "PYTHONPATH": "/node/containers/7-0/root/root:/pkg"}
    assert why_not(ZYGOTE, ENVIRONMENT | own, []) == ""


def test_a_client_that_reads_everything_or_starts_threads_is_never_forked():
    curious = Zygote("z.sock", ZYGOTE.modules, frozenset({"*"}), ENVIRONMENT, "/root", 1)
    assert "whole environment" in why_not(curious, ENVIRONMENT, [])
    threaded = Zygote("z.sock", ZYGOTE.modules, ZYGOTE.looked, ENVIRONMENT, "/root", 2)
    assert "2 threads" in why_not(threaded, ENVIRONMENT, [])


def test_the_clients_layers_are_known_by_what_they_hold(tmp_path):
    deps, client = layer(tmp_path / "deps", "__modal/deps/x.py"), layer(tmp_path / "client", "pkg/modal/__init__.py")
    program, mixed = layer(tmp_path / "program", "root/train.py"), layer(tmp_path / "mixed", "pkg/x.py", "root/y.py")
    assert split_layers([deps, program, client]) == ([deps, client], [program])
    assert why_base_not([deps, client]) == ""
    assert "also /root" in why_base_not([mixed])
    assert "no layer" in why_base_not([])
