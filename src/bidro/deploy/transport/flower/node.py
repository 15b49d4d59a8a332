"""A site on a Flower network, in one process: a SuperNode that answers with bidro and runs nothing else.

    BIDRO_SITE=site.toml python -m bidro.deploy.transport.flower.node --superlink fl.example.org:8443 \\
        --root-certificates ca.pem --auth-supernode-private-key north

To the SuperLink it is a SuperNode as `flower-supernode` is, with the same key and options. But that command
asks every three seconds whether there is a message, fetches and installs the app that a run brings, and
starts a process for every message, which imports and compiles for seconds. Here the app is not fetched at
all: a run cannot bring code to the site, and what was imported, compiled and read for one message is there
for the next. A run whose app, by its hash, is not bidro's is not answered.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.run import InvalidRunStatusException, RunNotRunningException
from flwr.supernode.fleet_http_connection import http_request_response

from bidro.core.errors import BidroError
from bidro.core.pytrees import forget_programs
from bidro.deploy.site.session import (
    VARIABLE,  # and with it, before the first message, all that an answer needs
)
from bidro.deploy.transport.flower.app import bidros_app, client_app, refused

_log = logging.getLogger(__name__)

# The pause between two looks for a message is this share of the time since the last one, within these limits
# in seconds: during a run it is short, and a site without a run asks as seldom as Flower's own.
_SHARE, _SHORTEST, _LONGEST = 0.1, 0.2, 3.0
# How Flower says that a run has ended: these are no `Exception`s.
_ENDED = (RunNotRunningException, InvalidRunStatusException)


def answer_for_ever(superlink: str, authority: bytes, key: ec.EllipticCurvePrivateKey) -> None:
    """Answer the messages that a SuperLink has for the node with this key, until the SuperLink refuses it.

    superlink: host:port. authority: the certificate of who signed the SuperLink's, in PEM.
    """
    with http_request_response(superlink, False, authority, (key, key.public_key())) as connection:
        node, receive, send, get_run, _, pull, push, confirm = connection
        last, run, known = time.monotonic(), None, False
        while True:
            found = receive()
            if found is None:
                time.sleep(min(max(_SHARE * (time.monotonic() - last), _SHORTEST), _LONGEST))
                continue
            run_id, tree = found[0].metadata.run_id, found[1]
            if run_id != run:
                # Else the programs of all runs would stay in memory.
                forget_programs()
                run, known = run_id, False
            try:
                known = known or get_run(run_id).fab_hash == bidros_app().digest
                message = pull_and_inflate_object_from_tree(
                    tree, partial(pull, run_id), partial(confirm, run_id), return_type=Message
                )
                message.metadata.__dict__["_message_id"] = tree.object_id
                context = Context(run_id, node, {}, RecordDict(), {})
                began = time.monotonic()
                reply = client_app(message, context) if known else refused(message)
                _send(reply, time.monotonic() - began, send, partial(push, run_id))
            except (Exception, *_ENDED):
                # The run has ended meanwhile, or the message cannot be read: the next one is another.
                _log.exception("a message was not answered")
            last = time.monotonic()


def _send(
    reply: Message, seconds: float, send: Callable[..., Any], push: Callable[[str, str, bytes], None]
) -> None:
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        wanted, session = send(reply, get_object_tree(reply), seconds)
        push_objects(get_all_nested_objects(reply), partial(push, session), object_ids_to_push=wanted)


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BidroError(f"'{path}' is not a private key in OpenSSH's format: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BidroError(
            f"'{path}' is no key on an elliptic curve; make one by `ssh-keygen -t ecdsa -b 384`."
        )
    return key


def _stopped(*_: Any) -> None:
    raise SystemExit(0)


def main() -> None:
    """The command; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m bidro.deploy.transport.flower.node", description=__doc__)
    parser.add_argument("--superlink", required=True, help="host:port of the SuperLink")
    parser.add_argument("--root-certificates", type=Path, required=True, help="who signed its certificate")
    parser.add_argument("--auth-supernode-private-key", type=Path, required=True, help="this site's key")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    os.umask(0o077)  # a site's personal models are its owner's
    # So that the SuperLink hears that the site leaves.
    signal.signal(signal.SIGTERM, _stopped)
    try:
        authority, key = given.root_certificates.read_bytes(), _key(given.auth_supernode_private_key)
        if VARIABLE not in os.environ:
            raise BidroError(f"The environment variable {VARIABLE} names no site.toml.")
    except (OSError, BidroError) as error:
        raise SystemExit(f"bidro: {error}") from error
    answer_for_ever(given.superlink, authority, key)


if __name__ == "__main__":
    main()
