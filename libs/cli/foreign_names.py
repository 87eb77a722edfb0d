"""Names of commands and options in Slurm and Kubernetes, and what to use here instead: hints for usage errors."""

from typing import Any

COMMANDS = {
    **{what: f"baton get {what}" for what in ("jobs", "nodes", "devices", "queues", "quotas", "pools")},
    "list": "baton get jobs", "ls": "baton get jobs", "ps": "baton get jobs", "squeue": "baton get jobs",
    "sacct": "baton get jobs", "sprio": "baton get waiting", "sreport": "baton bill", "scontrol": "baton describe",
    "sinfo": "baton get nodes", "delete": "baton cancel", "kill": "baton cancel", "scancel": "baton cancel",
    "run": "baton submit", "create": "baton submit", "sbatch": "baton submit", "srun": "baton submit",
    "salloc": "baton submit", "events": "baton watch", "drain": "baton node cordon", "cordon": "baton node cordon",
    "uncordon": "baton node uncordon",
}  # fmt: skip
"""Other tools' commands for `baton` itself."""

_OF_NODES = {
    "drain": "baton node cordon", "resume": "baton node uncordon", "undrain": "baton node uncordon",
    "down": "baton node declare-dead", "list": "baton get nodes", "remove": "baton node revoke", "delete": "baton node revoke",
}  # fmt: skip

_DEVICES = (
    "a job asks for devices: write --gpus H100:16 for all of them, and --topology node:required to have them together"
)
_PROCESSES = "a job has a process for each device, or with --launch per-node for each node"
_CPUS = "write --cpus N, the processors beside each device"
_HOST_MEMORY = "write --host-memory 64GiB, the memory of the node for each device (--memory is the device's own)"
_OPTIONS = {
    "--array": "write each job as a document of one file, with a line `---` between two, or submit them in a loop",
    "-a": "write each job as a document of one file, with a line `---` between two, or submit them in a loop",
    "--nodes": _DEVICES, "-N": _DEVICES, "--gres": _DEVICES, "--gpus-per-node": _DEVICES, "--gpus-per-task": _DEVICES,
    "--ntasks": _PROCESSES, "-n": _PROCESSES, "--ntasks-per-node": _PROCESSES, "--tasks-per-node": _PROCESSES,
    "--cpus-per-task": _CPUS, "-c": _CPUS, "--cpus-per-gpu": _CPUS, "--cpu": _CPUS,
    "--mem": _HOST_MEMORY, "--mem-per-gpu": _HOST_MEMORY, "--mem-per-cpu": _HOST_MEMORY,
    "--partition": "write --label for the nodes that are meant, --pool for a pool, or --class for a priority class",
    "-p": "write --label for the nodes that are meant, --pool for a pool, or --class for a priority class",
    "--constraint": "write --label NAME=VALUE", "--nodelist": "write --label NAME=VALUE", "-w": "write --label NAME=VALUE",
    "--qos": "write --class", "--priority": "write --class", "--queue": "write --class, or --team: queues share by team",
    "--account": "write --team", "-A": "write --team", "--namespace": "write --team",
    "--dependency": "wait for the first job, then submit the second: baton submit --wait ... && baton submit ...",
    "-d": "wait for the first job, then submit the second: baton submit --wait ... && baton submit ...",
    "--job-name": "write --name", "--chdir": "write --workdir", "-D": "write --workdir", "--export": "write --env NAME=VALUE",
    "--requeue": "write --retries N", "--signal": "write --checkpoint-grace", "--time-limit": "write --time",
    "--error": "Baton keeps what a job writes: see `baton logs`", "--follow": "write --logs",
}  # fmt: skip
"""Other tools' options of `baton submit`, and of `baton plan` if it has them."""


_NO_VALUE = (
    "a value is no argument: every user of this machine could read it; write it to stdin, or name a file with --file"
)
_NO_COMMAND = "where a job runs does not depend on its command: leave that out"


def told(error: Any) -> str:
    """The text of a usage error, with the replacement for a foreign option or command, if known. Never repeats a secret
    from the command line."""
    message = str(getattr(error, "message", "")).removeprefix("Value error, ")
    path = getattr(getattr(error, "ctx", None), "command_path", "")
    if path == "baton secret set" and message.startswith("Got unexpected extra argument"):
        return _NO_VALUE
    if path == "baton plan" and message.startswith("Got unexpected extra argument"):
        return f"{message}: {_NO_COMMAND}"
    fix = _replacement(error, path, message)
    return f"{message.rstrip('.')}: {fix}" if fix else message


def _replacement(error: Any, path: str, message: str) -> str:
    if (option := getattr(error, "option_name", None)) is not None and path in ("baton submit", "baton plan"):
        return _OPTIONS.get(option, "")
    if path == "baton node" and message.startswith("No such command "):
        name = message.removeprefix("No such command ").split("'")[1]
        return f"did you mean '{_OF_NODES[name]}'?" if name in _OF_NODES else ""
    return ""
