"""The node of a site on Flower: what it survives."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

flower_node = pytest.importorskip("bidro.deploy.transport.flower.node")


@pytest.mark.parametrize("ended", [*flower_node._ENDED, ConnectionError])
def test_a_run_that_ends_while_its_message_is_fetched_does_not_end_the_node(ended, monkeypatch):
    """As where the server's job is killed: the node used to end, and to stay away without a service that
    starts it again."""
    looks = []

    def receive():
        looks.append(len(looks))
        if len(looks) > 2:
            raise SystemExit(0)
        return SimpleNamespace(metadata=SimpleNamespace(run_id=len(looks))), SimpleNamespace(object_id="1")

    def get_run(run_id):
        raise ended

    @contextmanager
    def connection(*_):
        yield None, receive, None, get_run, None, None, None, None

    monkeypatch.setattr(flower_node, "http_request_response", connection)
    key = SimpleNamespace(public_key=lambda: None)
    with pytest.raises(SystemExit):
        flower_node.answer_for_ever("nowhere:1", b"", key)
    assert len(looks) == 3
