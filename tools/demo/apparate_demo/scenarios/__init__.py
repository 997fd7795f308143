"""What the demo serves: a model, what its ramps are trained on, and the traffic in order. One file a scenario."""

from __future__ import annotations

from apparate_demo.scenarios import cifar, text, vision
from apparate_demo.scenarios.scenario import Scenario

SCENARIOS: dict[str, Scenario] = {s.name: s for s in (vision.SCENARIO, text.SCENARIO, cifar.SCENARIO)}
