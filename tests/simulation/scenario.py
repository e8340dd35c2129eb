"""What a run is made of, and what it has shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from faults import Fault


@dataclass(frozen=True)
class Scenario:
    """What a run is made of; the rest comes from the seed.

    `faults` are the numbers of those that happen, None: all. `every` is how many seconds lie between two of them, on
    average, and `busy` how many times as often as usual clients begin something. `ends`: not all of the `seconds` pass,
    but only so many. `begins` is the time in seconds since the epoch; None: the seed chooses it. With a `fleet` there
    are so many proxies, of which each is simulated in part (`simulated_fleet.py`); 0: there is one, as a whole.
    """

    seed: int
    seconds: float = 5400.0
    clients: tuple[int, ...] = tuple(range(12))
    faults: tuple[int, ...] | None = None
    every: float = 100.0
    busy: float = 144.0
    begins: float | None = None
    ends: float | None = None
    fleet: int = 0

    @property
    def command(self) -> str:
        """What repeats the run."""
        number = len(self.clients)
        # A number alone means the first ones.
        clients = f"{number}" if self.clients == tuple(range(number)) else "".join(f"{each}," for each in self.clients)
        parts = [f"--seed {self.seed} --seconds {self.seconds:.15g} --every {self.every:g} --busy {self.busy:g}"]
        parts.append(f"--clients {clients}")
        if self.faults is not None:
            parts.append(f"--faults {','.join(map(str, self.faults)) or 'none'}")
        if self.begins is not None:
            parts.append(f"--begins {self.begins:.15g}")
        if self.ends is not None:
            parts.append(f"--ends {self.ends:.15g}")
        if self.fleet:
            parts.append(f"--fleet {self.fleet}")
        return f"tests/simulation/simulate {' '.join(parts)}"


@dataclass
class Result:
    """What a run has shown: `violation` is what did not hold, and when; None: all held."""

    scenario: Scenario
    violation: str | None = None
    at: float = 0.0
    digest: str = ""
    faults: list[Fault] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    took: float = 0.0
