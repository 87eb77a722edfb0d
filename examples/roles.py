"""A program of two roles: judges report to the first trainer, which waits for all of them.

Each process learns from its environment which role it serves and where the others are (docs/job-spec.md, "What a process of
a role is told"). Plain Python, no packages; the job file is roles.yaml.
"""

import argparse
import os
import socket
import time

ROLE = os.environ["BATON_ROLE"]
RANK, SIZE = int(os.environ["BATON_ROLE_RANK"]), int(os.environ["BATON_ROLE_WORLD_SIZE"])
TRAINERS = os.environ["BATON_ROLE_HOSTS_TRAINER"].split(",")
PORT = int(os.environ["MASTER_PORT"])
"""The same in all processes of this attempt, and free on the first trainer's node: nothing else of the job listens."""


def gather(judges: int) -> None:
    """Waits for a line from each judge."""
    with socket.create_server(("", PORT), reuse_port=True) as server:
        for _ in range(judges):
            connection, _ = server.accept()
            with connection, connection.makefile() as lines:
                print(f"trainer 0 heard: {lines.readline().strip()}", flush=True)


def report(host: str, patience_s: float) -> None:
    """Tells the first trainer, which may start later, that this judge is there."""
    until = time.monotonic() + patience_s
    while True:
        try:
            with socket.create_connection((host, PORT), timeout=5) as connection:
                connection.sendall(f"judge {RANK} of {SIZE}\n".encode())
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--judges", type=int, default=2, help="how many to wait for")
    options.add_argument("--patience-s", type=float, default=60, help="how long a judge waits for the trainer, s")
    chosen = options.parse_args()
    print(f"{ROLE} {RANK} of {SIZE}; trainers on {', '.join(TRAINERS)}", flush=True)
    if ROLE == "judge":
        report(TRAINERS[0], chosen.patience_s)
    elif RANK == 0:
        gather(chosen.judges)
    print("done", flush=True)


if __name__ == "__main__":
    main()
