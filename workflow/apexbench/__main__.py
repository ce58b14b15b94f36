import signal

# Until the command is loaded Ctrl-C ends it without the traceback of an import.
interrupt = signal.getsignal(signal.SIGINT)
if interrupt is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from apexbench.cli import main  # noqa: E402

signal.signal(signal.SIGINT, interrupt)
main()
