import signal

from apexbench.termination import interrupted_quietly

interrupt = interrupted_quietly()

from apexbench.cli import main  # noqa: E402

signal.signal(signal.SIGINT, interrupt)
main()
