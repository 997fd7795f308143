"""Every kopf decorator there is. What comes only says that something changed: decisions read the store.

No create, update or delete handlers, no timers, no daemons, no finalizers: they react to differences, and what was
missed once is missed for ever. Peering is off; the Lease says which replica acts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import kopf

from apparate.contract.conditions import OPERATOR
from apparate.contract.labels import PREFIX
from apparate.contract.resource import GROUP, PLURAL, VERSION
from apparate_operator.kinds import CONFIG_MAP, DEPLOYMENT, JOB, MODEL, POD, SELECTOR, WATCHED, Kind
from apparate_operator.settings import OperatorSettings

PAUSES_S = (0.5, 1.0, 2.0, 5.0)  # between tries of a request that the API server cannot answer; the last for ever
MARGIN_S = 5.0  # a watch that outlives its own end by so much is dead
REQUEST_S = 30.0


class Pauses:
    """Without an end: kopf ends the whole process with the last one, also where an API server is only starting."""

    def __iter__(self) -> Iterator[float]:
        yield from PAUSES_S
        while True:
            yield PAUSES_S[-1]


def kopf_settings(settings: OperatorSettings) -> kopf.OperatorSettings:
    """How kopf watches: requests that end by themselves, so that a dead connection is noticed within a minute."""
    found = kopf.OperatorSettings()
    found.watching.server_timeout = settings.watch_seconds
    found.watching.inactivity_timeout = settings.watch_seconds + MARGIN_S
    found.watching.client_timeout = settings.watch_seconds + 2 * MARGIN_S
    found.watching.connect_timeout = MARGIN_S
    found.watching.chunk_size = 500
    for kind in WATCHED:
        if kind is not MODEL:
            found.watching.label_selectors[kind.group, kind.plural] = SELECTOR
    found.networking.request_timeout = REQUEST_S
    found.networking.connect_timeout = MARGIN_S
    found.networking.error_backoffs = Pauses()
    found.queueing.idle_timeout = 0.2  # a thousand models at once leave no thousands of waiting tasks
    found.queueing.exit_timeout = 0.5
    found.scanning.disabled = True  # one kind, known from the start: no rights on CRDs and namespaces are needed
    found.peering.standalone = True
    found.posting.enabled = False
    found.process.ultimate_exiting_timeout = 20.0
    # Only used by handlers that there are none of; never in the status, where two writers and a schema are.
    found.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=PREFIX)
    found.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=PREFIX)
    found.persistence.finalizer = f"{PREFIX}/{OPERATOR}"
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # says of each event that it was heard
    return found


@kopf.on.login()
async def login(memo: kopf.Memo, **kwargs: Any) -> kopf.ConnectionInfo | None:
    """The same identity as for writing: a kubeconfig when one is given, else the pod's own token."""
    settings: OperatorSettings = memo.operator.settings
    own = None if settings.kubeconfig else kopf.login_with_service_account(**kwargs)
    return own or kopf.login_with_kubeconfig(**kwargs)


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """End the work before kopf itself ends: it waits 5 s for tasks that it finds then, and cancels them one by one,
    the one that holds the Lease first. It would be had again at once, and not given back."""
    await memo.operator.stop()


def _heard(memo: kopf.Memo, kind: Kind, event: Any) -> None:
    memo.operator.heard(kind, str(event["type"] or "LISTED"), event["object"])


@kopf.on.event(GROUP, VERSION, PLURAL)
async def model_changed(event: Any, memo: kopf.Memo, **_: Any) -> None:
    """An EarlyExitModel came, changed or went."""
    _heard(memo, MODEL, event)


@kopf.on.event("apps", "v1", "deployments")
async def deployment_changed(event: Any, memo: kopf.Memo, **_: Any) -> None:
    """The workers of a model came, changed or went."""
    _heard(memo, DEPLOYMENT, event)


@kopf.on.event("batch", "v1", "jobs")
async def job_changed(event: Any, memo: kopf.Memo, **_: Any) -> None:
    """A preparation came, changed or went."""
    _heard(memo, JOB, event)


@kopf.on.event("", "v1", "pods")
async def pod_changed(event: Any, memo: kopf.Memo, **_: Any) -> None:
    """A pod of a model came, changed or went."""
    _heard(memo, POD, event)


@kopf.on.event("", "v1", "configmaps")
async def catalog_changed(event: Any, memo: kopf.Memo, **_: Any) -> None:
    """A catalog, or the progress of a preparation, came, changed or went."""
    _heard(memo, CONFIG_MAP, event)
