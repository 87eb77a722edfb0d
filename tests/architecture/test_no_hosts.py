"""The repository installs from whatever index the machine is set up with, and runs from whatever folder it lies in:
so no file of it names a package index or a path of somebody's machine."""

import configparser
import os
import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]

# Spelled in pieces, or this file would find itself.
REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("registry", "npmjs", "org"),
        ("registry", "yarnpkg", "com"),
        ("conda", "anaconda", "org"),
        ("proxy", "golang", "org"),
        ("static", "crates", "io"),
        ("registry", "hub", "docker", "com"),
    )
]
COMMON_FOLDERS = {"/", "/tmp", "/home", "/opt", "/srv", "/usr", "/var", "/mnt", "/app"}


def machine_indexes() -> list[str]:
    """What pip and uv are told to install from on this machine: not for anybody else to see."""
    values = [value for name, value in os.environ.items() if re.match(r"(PIP|UV)_.*(INDEX|LINKS)", name)]
    for path in ("/etc/pip.conf", "~/.config/pip/pip.conf", "~/.pip/pip.conf"):
        config = configparser.RawConfigParser(strict=False)
        config.read(Path(path).expanduser(), encoding="utf-8")
        values += [v for s in config.sections() for k, v in config.items(s) if re.search("index|links|host", k)]
    hosts = {urlsplit(word).hostname or "" for value in values for word in value.split() if "//" in word}
    return sorted(host for host in hosts if "." in host and not host.startswith("127."))


def machine_paths() -> list[str]:
    return sorted({str(path) for path in (ROOT, ROOT.parent, Path.home())} - COMMON_FOLDERS)


def patterns(hosts: list[str], paths: list[str]) -> dict[str, re.Pattern[str]]:
    return {
        "a package index": re.compile("|".join(not_after(r"[\w-]", re.escape(host)) for host in hosts)),
        "an index URL": re.compile(r"https?://[^\s\"']+/simple\b"),
        "a path of this machine": re.compile("|".join(not_after(r"[\w./}-]", re.escape(path)) for path in paths)),
    }


def not_after(before: str, what: str) -> str:
    """A pattern of `what` as a word of its own. It begins with what it looks for: that is found at several times the speed."""
    return rf"{what}(?<!{before}{what})(?![\w-])"


def tracked() -> list[Path]:
    """Every file that is in git or would be with `git add .`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def findings(path: str, text: str, wanted: dict[str, re.Pattern[str]]) -> list[str]:
    there = {what: pattern for what, pattern in wanted.items() if pattern.pattern and pattern.search(text)}
    return [
        f"{path}:{number}: names {what}: {match[0]}"
        for number, line in enumerate(text.splitlines() if there else (), 1)
        for what, pattern in there.items()
        if (match := pattern.search(line))
    ]


def test_no_file_names_a_package_index_or_a_path_of_this_machine() -> None:
    wanted = patterns(REGISTRIES + machine_indexes(), machine_paths())
    found = [
        line
        for path in tracked()
        for line in findings(path.relative_to(ROOT).as_posix(), path.read_text("utf-8", errors="replace"), wanted)
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        f"--index-url https://{REGISTRIES[0]}/x",
        f"wheel = 'https://files.{REGISTRIES[1]}/packages/a.whl'",
        "index = 'http://mirror.example" + "/simple'",
        "state = '/somebody/" + "baton/state'",
        "cd /somebody/" + "baton && ./dev",
    ],
)
def test_a_planted_name_is_found(line: str) -> None:
    assert findings("planted", line, patterns(REGISTRIES, ["/somebody/baton", "/somebody"]))


@pytest.mark.parametrize("line", ["docs/somebody/x", "/somebody-else/x", "https://example.com/simplest", "$HOME/x"])
def test_what_names_nothing_is_left_alone(line: str) -> None:
    assert not findings("planted", line, patterns(REGISTRIES, ["/somebody"]))
