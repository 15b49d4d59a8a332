"""A client in a process of its own: `python -m tests.engines.client_process NAME ALGORITHM RHO ROWS`.

It is started with the path of a file that holds its own rows and nothing else, and then answers frames on
standard input (4 bytes of round number, 4 bytes of length, a broadcast) with frames on standard output.
"""

import struct
import sys

from safetensors.numpy import load_file

from bidro.algorithms import AFL, BiDROFL, ExactMWDRO
from bidro.client import Client, Penalty
from bidro.engines.site import answer
from bidro.engines.wire import pack
from bidro.losses import Squared
from bidro.sets import Box
from bidro.transport import Transport
from bidro.worst_case import Exact

ALGORITHMS = {
    "BiDRO-FL": BiDROFL(),
    "AFL": AFL(eta_x=0.05, eta_alpha=0.02),
    "exact MW-DRO": ExactMWDRO(Exact()),
}


def main() -> None:
    name, algorithm, rho, path = sys.argv[1:]
    own = load_file(path)["rows"]
    client = Client.single(
        name, own, Squared(), Transport.euclidean(4), Box.cube(3.0, 4), Penalty(float(rho))
    )
    frames, replies = sys.stdin.buffer, sys.stdout.buffer
    while header := frames.read(8):
        round_number, length = struct.unpack("<II", header)
        reply = pack(answer(ALGORITHMS[algorithm], client, 9, round_number, frames.read(length)))
        replies.write(struct.pack("<I", len(reply)) + reply)
        replies.flush()


if __name__ == "__main__":
    main()
