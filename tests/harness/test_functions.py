"""Functions, classes, files and images, as the stock clients create them."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import modal
import pytest
from modal_proto import api_pb2

from phalanx.model.app import App, Mount
from phalanx.model.cluster import Assignment, Member
from phalanx.model.node import NodeRecord
from phalanx.model.work import Function
from phalanx.server.launch import container_spec
from phalanx.server.layers import layer_files
from tests.harness.clients import OLDER_CLIENTS, client_python, share_client_packages
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet

EVERY_KIND = """
    import modal
    import modal.experimental

    clustered = getattr(modal, "clustered", None) or modal.experimental.clustered
    app = modal.App("every-kind")

    @app.function(gpu="h100:8", timeout=600, retries=3)
    @clustered(size=2)
    def train(): ...

    @app.function(gpu=["H100!:8", "A100-80GB:4"], cpu=2, memory=1024)
    def choosy(): ...

    @app.function(max_containers=3)
    def plain(x): return x

    @app.cls()
    class Model:
        name: str = modal.parameter(default="small")

        @modal.method()
        def ask(self, x): return x

        @modal.method()
        def stream(self, x): yield x
"""


@pytest.fixture(autouse=True)
def client_packages(tmp_path: Path) -> None:
    share_client_packages(tmp_path / "state")


def deploy(plane: ControlPlane, program: str, python: str = "", **env: str) -> Any:
    source = plane.folder / "program.py"
    source.write_text(textwrap.dedent(program))
    return plane.modal("deploy", str(source), timeout=110, **({"python": python} if python else {}), **env)


def functions(plane: ControlPlane) -> dict[str, Function]:
    return {function.name: function for function in plane.server.world[Function].values() if not function.bound_to}


@pytest.mark.parametrize("version", ["1.6.4", *(pytest.param(version, marks=pytest.mark.full) for version in OLDER_CLIENTS)])
def test_every_client_creates_every_kind_of_function(control_plane: ControlPlane, version: str) -> None:
    done = deploy(control_plane, EVERY_KIND, "" if version == modal.__version__ else client_python(version))
    assert done.returncode == 0, done.stdout + done.stderr
    made = functions(control_plane)
    train, choosy, model = made["train"], made["choosy"], made["Model.*"]
    assert (train.size, train.clustered, train.gpus, train.timeout_s, train.retries) == (2, True, [["H100", 8, False]], 600, 3)
    assert choosy.gpus == [["H100", 8, True], ["A100-80GB", 4, False]]
    assert [api_pb2.Function.FromString(one).resources.gpu_config.gpu_type for one in choosy.ranked] == ["H100!", "A100-80GB"]
    assert (choosy.cpu_milli, choosy.memory_mib, made["plain"].max_nodes) == (2000, 1024, 3)
    assert (model.is_class, model.methods) == (True, ["ask", "stream"])
    assert {function.client_version for function in made.values()} == {version}
    assert all(function.published and function.definition_id for function in made.values())


def test_a_deploy_without_changes_is_no_new_version(control_plane: ControlPlane) -> None:
    deploy(control_plane, EVERY_KIND)
    before = {name: (f.function_id, f.definition_id) for name, f in functions(control_plane).items()}
    again = deploy(control_plane, EVERY_KIND)
    assert "no changes" in again.stdout
    deploy(control_plane, EVERY_KIND.replace("max_containers=3", "max_containers=4"))
    after = functions(control_plane)
    assert {name: f.function_id for name, f in after.items()} == {name: ids[0] for name, ids in before.items()}
    assert after["plain"].max_nodes == 4
    assert after["plain"].definition_id != before["plain"][1]
    # The file changed too, and is a mount of every function: they are all new definitions.


@pytest.mark.parametrize(
    ("decorators", "sentence"),
    [
        ('@app.function(gpu="H100:4")\n@modal.clustered(size=4)', "nodes with H100 have 8; use gpu='H100:8'"),
        ("@app.function()\n@modal.clustered(size=4)", "is a cluster of 4 without a GPU"),
        ('@app.function(gpu="H1000")', "unknown GPU type 'H1000'; known: T4"),
        ("@app.function(timeout=100_000)", "timeout=100000 on 'f': from 1 to 86400 seconds"),
        ('@app.function(gpu="L4:8")\n@modal.clustered(size=2, rdma=True)', "no machine with L4 has RDMA"),
        ('@app.function(image=modal.Image.debian_slim().pip_install("jax"))', "the image needs building: `RUN python -m pip install jax`"),
        ('@app.function(secrets=[modal.Secret.from_name("s")])', "Secrets with a name are not supported by this Phalanx server ('s'): use"),
        ("@app.function()\n@modal.fastapi_endpoint()", "web endpoints are not supported yet"),
    ],
)
def test_what_can_not_be_is_refused_with_a_sentence(control_plane: ControlPlane, decorators: str, sentence: str) -> None:
    done = deploy(control_plane, f"import modal\napp = modal.App('refused')\n{decorators}\ndef f(): ...\n")
    assert done.returncode == 1
    assert sentence in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not functions(control_plane)


def test_settings_that_are_no_multiple_are_refused_by_the_server_too(control_plane: ControlPlane) -> None:
    """The newest client checks this itself; older ones do not, and settings can be changed later."""
    deploy(control_plane, EVERY_KIND)
    train = modal.Function.from_name("every-kind", "train")
    with pytest.raises(modal.exception.InvalidError, match="min_containers=3 on 'train': must be a multiple of 2"):
        train.autoscaler.update(min_containers=3)
    assert train.autoscaler.update(min_containers=4, scaledown_window=120).min_containers == 4
    assert functions(control_plane)["train"].min_nodes == 4
    assert train.get_current_stats().backlog == 0


def test_a_handle_by_name_knows_the_function(control_plane: ControlPlane) -> None:
    deploy(control_plane, EVERY_KIND)
    choosy = modal.Function.from_name("every-kind", "choosy")
    assert choosy.info().gpus == [("H100!", 8), ("A100-80GB", 4)]
    assert modal.Function.from_id(choosy.object_id).info().cpu == 2.0
    with pytest.raises(modal.exception.NotFoundError, match=r"app 'every-kind' has: Model\.\*, choosy, plain, train"):
        modal.Function.from_name("every-kind", "chosy").hydrate()


def test_the_same_parameters_are_one_function(control_plane: ControlPlane) -> None:
    deploy(control_plane, EVERY_KIND)
    model = modal.Cls.from_name("every-kind", "Model")
    ids = [model(name=name).ask.hydrate().object_id for name in ("large", "large", "other")]
    assert ids[0] == ids[1] != ids[2]
    with_gpu = model.with_options(gpu="H100:2", timeout=77)(name="large").ask.hydrate().object_id
    bound = control_plane.server.world[Function]
    assert (bound[with_gpu].gpus, bound[with_gpu].timeout_s, bound[ids[0]].gpus) == ([["H100", 2, False]], 77, [])
    deploy(control_plane, EVERY_KIND.replace("@app.cls()", "@app.cls(timeout=99)"))
    assert (bound[ids[0]].timeout_s, bound[with_gpu].timeout_s) == (99, 77)


def test_a_python_that_no_node_has_is_refused(control_plane: ControlPlane) -> None:
    node = NodeRecord("node-0", "agent-0", gpu_type="any", gpu_count=8, cpu_milli=8000, memory_mib=8000, python_versions=["3.9"])
    control_plane.change(lambda unit: unit.put(node))
    done = deploy(control_plane, EVERY_KIND)
    assert "nodes of this fleet have Python 3.9" in done.stdout + done.stderr


def test_a_container_gets_everything_of_its_app(control_plane: ControlPlane) -> None:
    deploy(control_plane, EVERY_KIND)
    server, made = control_plane.server, functions(control_plane)
    bound = server.world[Function][modal.Cls.from_name("every-kind", "Model")(name="large").ask.hydrate().object_id]
    member = Member(7, 0, "ta-1", "node-0")
    spec = control_plane.call(lambda: container_spec(server, bound, member, 0))
    arguments = api_pb2.ContainerArguments.FromString(spec.container_arguments)
    assert (arguments.task_id, arguments.function_id, arguments.function_def.function_name) == ("ta-1", bound.function_id, "Model.*")
    assert arguments.serialized_params == bound.serialized_params
    layout = arguments.app_layout
    assert dict(layout.function_ids) == {name: function.function_id for name, function in made.items()}
    handles = {one.object_id: one for one in layout.objects}
    assert set(handles) >= {*layout.function_ids.values(), *layout.class_ids.values(), bound.image_id}
    assert set(handles[made["Model.*"].function_id].function_handle_metadata.method_handle_metadata) == {"ask", "stream"}
    assert spec.environment["MODAL_TASK_ID"] == "ta-1"
    assert spec.environment["MODAL_IMAGE_ID"] == bound.image_id
    assert spec.environment["OMP_NUM_THREADS"] == "1"


def test_the_chosen_gpu_decides_what_the_container_runs(control_plane: ControlPlane) -> None:
    deploy(control_plane, EVERY_KIND)
    server, choosy = control_plane.server, functions(control_plane)["choosy"]
    assignment = Assignment(7, "cu-1", choosy.app_id, choosy.function_id, 1, gpu_type="A100-80GB", gpu_choice=1)
    control_plane.change(lambda unit: unit.put(assignment))
    spec = control_plane.call(lambda: container_spec(server, choosy, Member(7, 0, "ta-1", "node-0"), 1))
    definition = api_pb2.ContainerArguments.FromString(spec.container_arguments).function_def
    assert definition.resources.gpu_config.gpu_type == "A100-80GB"
    assert (spec.gpu_type, spec.gpu_count, spec.environment["OMP_NUM_THREADS"]) == ("A100-80GB", 4, "2")


def test_layers_are_the_clients_then_the_users_files(control_plane: ControlPlane) -> None:
    (control_plane.folder / "big.bin").write_bytes(b"x" * 5_000_000)    # above 4 MiB: through the blob door
    (control_plane.folder / "tool.sh").write_text("#!/bin/sh\n")
    (control_plane.folder / "tool.sh").chmod(0o755)
    done = deploy(
        control_plane,
        """
        import modal
        image = modal.Image.debian_slim().add_local_file("big.bin", "/data/big.bin").add_local_file("tool.sh", "/bin/tool")
        app = modal.App("files", image=image)
        @app.function()
        def f(): ...
        """,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    server, function = control_plane.server, functions(control_plane)["f"]
    spec = control_plane.call(lambda: container_spec(server, function, Member(7, 0, "ta-1", "node-0"), 0))
    deps, client, *users = [{file.path: file for file in layer_files(server, layer_id)} for layer_id in spec.layer_ids]
    assert "/pkg/sitecustomize.py" in deps
    assert any(path.startswith("/__modal/deps/grpclib/") for path in deps)
    assert "/pkg/modal/_container_entrypoint.py" in client
    assert any(path.startswith("/pkg/modal/__pycache__/_container_entrypoint.") for path in client)
    files = {path: file for layer in users for path, file in layer.items()}
    assert files["/data/big.bin"].open().read() == b"x" * 5_000_000
    assert files["/bin/tool"].mode & 0o111
    assert "/root/program.py" in files


def test_the_client_package_outlives_the_server(control_plane: ControlPlane) -> None:
    deploy(control_plane, EVERY_KIND)
    mounts = set(control_plane.server.world[Mount])
    control_plane.restart()
    assert deploy(control_plane, EVERY_KIND.replace("every-kind", "other")).returncode == 0
    assert len(control_plane.server.world[App]) == 2
    assert {mount_id for mount_id in control_plane.server.world[Mount] if mount_id.startswith("mo-client")} <= mounts


@pytest.mark.parametrize(
    ("decorators", "sentence"),
    [
        pytest.param('@app.function(gpu="H100:4")\n@modal.clustered(size=2)', "nodes with H100 have 8; use gpu='H100:8'", id="case_16"),
        pytest.param("@app.function(cpu=16)", "can never fit: largest node has 8 CPU, you ask 16", id="case_23"),
        pytest.param('@app.function(gpu="H100:8", min_containers=6)\n@modal.clustered(size=4)', "multiple of", id="case_30"),
        pytest.param('@app.function(gpu="H100:8")\n@modal.clustered(size=3)', "can never fit", id="more_nodes_than_there_are"),
    ],
)
def test_what_this_fleet_can_never_run_is_refused_at_once(control_plane: ControlPlane, decorators: str, sentence: str) -> None:
    """Cases 16, 23 and 30, with two nodes of 8 H100 and 8 CPUs: when the function is created, not when it is called."""
    fleet = FakeFleet(control_plane, 2, gpu_type="H100")
    fleet.start()
    done = deploy(control_plane, f"import modal\napp = modal.App('refused')\n{decorators}\ndef f(): ...\n")
    fleet.stop()
    assert done.returncode == 1
    assert sentence in done.stdout + done.stderr
    assert not functions(control_plane)
