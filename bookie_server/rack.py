"""Where this bookie is: its rack as configured, or looked up in a file or by a script (rule P21).

File and script are those of Hadoop: `net.topology.table.file.name` and
`net.topology.script.file.name`. What cannot be looked up ends the start: a bookie in the wrong rack
would be trusted with copies that should be elsewhere.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec

from bookie_server.config import BookieConfig
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.bookie import RACK_SCRIPT_S


def with_rack(config: BookieConfig) -> BookieConfig:
    """The configuration with the rack that file or script tell of the address where clients reach
    this bookie.

    Raises ConfigurationError if they do not tell.
    """
    host = config.listen.advertised[0] or config.listen.host.strip("[]")
    if config.rack_file:
        names = (config.bookie_id, host) if config.bookie_id else (host,)
        rack, source = _look_up(Path(config.rack_file), names), config.rack_file
    elif config.rack_script:
        rack, source = _ask(config.rack_script, host), config.rack_script
    else:
        return config
    return msgspec.structs.replace(config, rack=_checked(rack, source))


def _look_up(path: Path, names: tuple[str, ...]) -> str:
    """The second column of the line that begins with one of the names."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"rack_file {path} cannot be read: {error}") from error
    found = dict(line.split()[:2] for line in lines if len(line.split()) > 1 and line[:1] != "#")
    for name in names:
        if name in found:
            return found[name]
    raise ConfigurationError(f"rack_file {path} has no line for {' or '.join(names)}: add one")


def _ask(script: str, host: str) -> str:
    """What the script prints for a host."""
    try:
        asked = subprocess.run(
            [script, host], capture_output=True, text=True, timeout=RACK_SCRIPT_S, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"rack_script {script} failed: {error}") from error
    return asked.stdout.strip()


def _checked(rack: str, source: str) -> str:
    if len(rack) < 2 or rack[0] != "/" or any(letter.isspace() for letter in rack):
        raise ConfigurationError(
            f"{source} says that this bookie is in {rack!r}: a rack is a path such as /eu/r1"
        )
    return rack
