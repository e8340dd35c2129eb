"""Configuration files that a test writes."""

from __future__ import annotations

from pathlib import Path

SERVICE = "proxy: {interface: eth0, ports: [8080]}\n"


def write_config(directory: Path, service: str = SERVICE, **networks: str) -> Path:
    """The service's file, beside these access networks, and no others."""
    files = directory / "networks.d"
    files.mkdir(exist_ok=True)
    for file in files.glob("*.yaml"):
        file.unlink()
    for name, text in networks.items():
        (files / f"{name}.yaml").write_text(text)
    path = directory / "service.yaml"
    path.write_text(service)
    return path
