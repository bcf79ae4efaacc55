"""The command `nnmpi completion`: prints the script that completes command lines of `nnmpi`."""

from nnmpi.addons.doctor.completion_command import main as main
from nnmpi.addons.doctor.completion_command import parser as parser

if __name__ == "__main__":
    raise SystemExit(main())
