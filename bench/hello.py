"""The peers of bench/deploy.py: each engine's own hello-world, as its tutorials have it, on the same network
of processes with as many rounds and clients: what the engine itself takes where nothing is computed."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

_POLL = 0.5  # seconds between two questions about a run's status
_APP = b"""
[project]
name = "hello"
version = "1.0.0"
[tool.flwr.app]
publisher = "bidro"
[tool.flwr.app.components]
serverapp = "hello:server_app"
clientapp = "hello:client_app"
[tool.flwr.app.config]
rounds = 1
"""
_CODE = b"""
from flwr.app import Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server_app, client_app = ServerApp(), ClientApp()


@server_app.main()
def main(grid, context):
    nodes = [node.node_id for node in grid.get_nodes() if node.name.startswith("hello")]
    for _ in range(int(context.run_config["rounds"])):
        messages = [Message(RecordDict(), node, MessageType.TRAIN) for node in nodes]
        assert len(list(grid.send_and_receive(messages))) == len(nodes)


@client_app.train()
def answer(message, context):
    return Message(RecordDict(), reply_to=message)
"""


def flower(net: Any, clients: int, rounds: int) -> float:
    """Seconds of a run on Flower's own SuperNodes, which are started for it beside bidro's nodes."""
    from flwr.cli.build import build_fab_from_files
    from flwr.common.serde import user_config_to_proto
    from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest
    from flwr.proto.fab_pb2 import Fab

    from bidro.deploy.transport.flower.drive import control
    from bidro.deploy.transport.local import free_port

    names = [f"hello-{k}" for k in range(clients)]
    nodes = set()
    for name in names:
        node = ("flower-supernode", "--host", "127.0.0.1", "--port", str(free_port()))
        nodes.add(net.start_node(name, node))
    net.wait(lambda: nodes <= net._online(), names)
    fab, _ = build_fab_from_files({"pyproject.toml": _APP, "hello.py": _CODE})
    start = StartRunRequest(
        fab=Fab(hash_str=hashlib.sha256(fab).hexdigest(), content=fab),
        override_config=user_config_to_proto({"rounds": rounds}),
    )
    began = time.perf_counter()
    with control(net.settings) as superlink:
        run = superlink.StartRun(start).run_id
        while superlink.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status.status != "finished":
            time.sleep(_POLL)
    return time.perf_counter() - began


def allow_flares_classes() -> None:
    """In kits made from now on: bidro's own allow no job of others."""
    from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

    from bidro.deploy.transport.flare import kit as flare_kit

    flare_kit._CLASSES += DEFAULT_CLASS_ALLOW_LIST


def flare(net: Any, clients: int, rounds: int) -> float:
    """Seconds of hello-numpy: ScatterAndGather with the trainer that adds one to a small matrix."""
    from bidro.deploy.transport.flare.drive import session

    common = "nvflare.app_common"
    server = {
        "format_version": 2,
        "server": {"task_request_interval": 0.5},
        "components": [
            {"id": "persistor", "path": f"{common}.np.np_model_persistor.NPModelPersistor", "args": {}},
            {
                "id": "generator",
                "path": f"{common}.shareablegenerators.full_model_shareable_generator"
                ".FullModelShareableGenerator",
                "args": {},
            },
            {
                "id": "aggregator",
                "path": f"{common}.aggregators.intime_accumulate_model_aggregator"
                ".InTimeAccumulateWeightedAggregator",
                "args": {"expected_data_kind": "WEIGHTS"},
            },
        ],
        "workflows": [
            {
                "id": "gather",
                "path": f"{common}.workflows.scatter_and_gather.ScatterAndGather",
                "args": {
                    "min_clients": clients,
                    "num_rounds": rounds,
                    "wait_time_after_min_received": 0,
                    "aggregator_id": "aggregator",
                    "persistor_id": "persistor",
                    "shareable_generator_id": "generator",
                },
            }
        ],
    }
    trainer = {"path": f"{common}.np.np_trainer.NPTrainer", "args": {"sleep_time": 0}}
    client = {
        "format_version": 2,
        "components": [],
        "executors": [{"tasks": ["train", "submit_model"], "executor": trainer}],
    }
    meta = {
        "name": "hello",
        "min_clients": clients,
        "resource_spec": {},
        "deploy_map": {"server": ["server"], "client": net.settings["clients"]},
    }
    with tempfile.TemporaryDirectory() as scratch, session(net.settings) as admin:
        folder = Path(scratch) / "hello"
        for path, content in {
            "meta.json": meta,
            "server/config/config_fed_server.json": server,
            "client/config/config_fed_client.json": client,
        }.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(json.dumps(content), encoding="utf-8")
        began = time.perf_counter()
        job_id = admin.submit_job(str(folder))
        while not (status := admin.get_job_meta(job_id)["status"]).startswith("FINISHED"):
            time.sleep(_POLL)
        assert status == "FINISHED:COMPLETED", status
        return time.perf_counter() - began
