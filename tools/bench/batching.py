"""Batching policies under bursts, on a virtual clock: requests without an answer in time, by class.

    make bench-batching

The queue and its policies are the worker's own; arrivals and passes are drawn, from the same seeds for every policy.
What a perfect server would lose is what the device cannot compute.
"""

from __future__ import annotations

import argparse
from statistics import mean

from support.queue_simulation import POLICIES, Device, Load, Outcomes, simulate

DEVICES = {
    "CPU, 1 + 1 ms a row, up to 8": (Device(1.0, 1.0), 8),
    "GPU, 6 + 0.3 ms a row, up to 8": (Device(6.0, 0.3), 8),
    "GPU, 6 + 0.3 ms a row, up to 64": (Device(6.0, 0.3), 64),
    "CPU, profile 3 times too fast": (Device(1.0, 1.0, profile_off=1 / 3), 8),
}
LOADS = {
    "0.9": Load(shares=(0.9,)),
    "bursts 0.5 / 2.5": Load(shares=(0.5, 2.5)),
    "3": Load(shares=(3.0,)),
    "3, clients never leave": Load(shares=(3.0,)),
}


def main() -> None:
    """Run and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="simulated time of each case")
    parser.add_argument("--seeds", type=int, default=3, help="repetitions of each case")
    asked = parser.parse_args()
    print("| device | load | policy | missed, high class | low class | all | rows of a pass |")
    print("|---|---|---|---|---|---|---|")
    for name, (device, most) in DEVICES.items():
        for words, load in LOADS.items():
            for policy in POLICIES:
                found = [
                    simulate(
                        policy,
                        Load(load.shares, load.turn_s, load.low, asked.seconds, load.slo_s),
                        device,
                        max_batch=most,
                        leave="never" not in words,
                        seed=seed,
                    )
                    for seed in range(asked.seeds)
                ]
                print(f"| {name} | {words} | {policy} | {row(found)} |")


def row(found: list[Outcomes]) -> str:
    """The figures of one case, as cells."""
    shares = [f"{mean(getattr(one, of).missed for one in found):.1%}" for of in ("high", "low", "all")]
    return " | ".join([*shares, f"{mean(mean(one.batches) for one in found):.1f}"])


if __name__ == "__main__":
    main()
