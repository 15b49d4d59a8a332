"""Kills and starts again the processes of a network on this machine, as crashes and reboots would."""

from bidro.deploy.transport.local import LocalProcesses, kill, with_variable


class Breakable:
    """A network that `transport.flare.local` or `transport.flower.local` has made, and ways to break it."""

    def __init__(self, net: LocalProcesses) -> None:
        self._net = net

    def __getattr__(self, name):
        return getattr(self._net, name)

    def kill_client(self, name):
        """End a site's process and whatever it is computing, as a power cut does."""
        self._net.end(name)

    def kill_client_job(self, name):
        """End what a site's process has started, and nothing else."""
        kill([one for one in self._net.running(name) if one.pid != self._net.processes[name].pid])

    def kill_server(self):
        """End the server and its job, as a power cut does."""
        self._net.end("server")

    def kill_server_job(self):
        """End the process that runs the server's side of the job, and nothing else."""
        if "flower" not in type(self._net).__module__:
            return self.kill_client_job("server")
        kill([one for one in self._net.running("server") if "flwr-serverapp" in " ".join(one.cmdline())])

    def restart_client(self, name):
        self._net.start([name])

    def restart_server(self):
        self._net.start(["server"])


def kill_flower(home):
    """All that was started with this FLWR_HOME, directly or not: Flower starts processes that outlive it."""
    while found := with_variable("FLWR_HOME", str(home)):
        kill(found)
