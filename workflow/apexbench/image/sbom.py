"""A CycloneDX bill of materials, from what the image itself says is installed."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import apexbench

# Runs inside the image: Python's packages by their metadata, Debian's by dpkg's own list.
PROGRAM = """
import importlib.metadata, json, pathlib, platform, re
python = {}
for one in importlib.metadata.distributions():
    name = one.metadata["Name"]
    if name and name.lower() not in python:
        said = one.metadata.get("License-Expression") or one.metadata.get("License") or ""
        url = one.read_text("direct_url.json")
        python[name.lower()] = [name, one.version, said.splitlines()[0] if said else None,
                                json.loads(url) if url else None]
system = []
try:
    text = pathlib.Path("/var/lib/dpkg/status").read_text(errors="replace")
except OSError:
    text = ""
for block in text.split("\\n\\n"):
    field = dict(re.findall(r"^(Package|Version|Architecture|Status): (.*)$", block, re.M))
    if field.get("Status", "").endswith(" installed"):
        system.append([field["Package"], field["Version"], field["Architecture"]])
try:
    release = platform.freedesktop_os_release()
except OSError:
    release = {}
print(json.dumps({"python": sorted(python.values()), "system": sorted(system),
                  "release": [release.get("ID", "linux"), release.get("VERSION_ID", "")]}))
"""


def document(packages: Mapping[str, Any], image: Mapping[str, Any]) -> dict[str, Any]:
    """The bill (CycloneDX 1.6, JSON) of the image that ``image`` (image.json) describes.

    ``packages`` is what :data:`PROGRAM` printed. The same image gives the same text: the serial
    number is derived from its id and there is no timestamp.
    """
    components = [_python(*entry) for entry in packages["python"]]
    components += [_system(entry, packages["release"]) for entry in packages["system"]]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, image['id'])}",
        "version": 1,
        "metadata": {
            "tools": {
                "components": [
                    {
                        "type": "application",
                        "name": "apexbench",
                        "version": apexbench.__version__,
                    }
                ]
            },
            "component": {
                "type": "container",
                "bom-ref": image["id"],
                "name": image["reference"],
                "version": image["id"],
                "properties": [
                    {"name": name, "value": value}
                    for name, value in sorted(image.get("labels", {}).items())
                ],
            },
        },
        "components": components,
    }


def _python(
    name: str, version: str, licence: str | None, url: Mapping[str, Any] | None
) -> dict[str, Any]:
    purl = f"pkg:pypi/{quote(name.lower().replace('_', '-'))}@{quote(version)}"
    commit = (url or {}).get("vcs_info", {}).get("commit_id")
    if commit and url is not None:
        purl = f"pkg:generic/{quote(name)}@{commit}?vcs_url={quote('git+' + url['url'], safe='')}"
        version = commit
    entry = _library(name, version, purl)
    if licence:
        entry["licenses"] = [{"license": {"name": licence[:200]}}]
    return entry


def _system(entry: Sequence[str], release: Sequence[str]) -> dict[str, Any]:
    name, version, architecture = entry
    where = f"{release[0]}-{release[1]}" if release[1] else release[0]
    return _library(
        name,
        version,
        f"pkg:deb/{quote(release[0])}/{quote(name)}@{quote(version, safe='')}"
        f"?arch={quote(architecture)}&distro={quote(where)}",
    )


def _library(name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
