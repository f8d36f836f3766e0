"""`python -m scheduler_svc.simulate TRACE`: what `octavo simulate` becomes.

Owns nothing. Invariant: the exit status is the command's.
"""

import sys

from scheduler_svc.simulate.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
