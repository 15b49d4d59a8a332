"""Networks of processes on this machine that tests break on purpose."""
