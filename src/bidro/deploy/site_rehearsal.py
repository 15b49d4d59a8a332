"""Whether a site would answer a run: one with this site alone, by the code of any run, on a copy of what the
site remembers. Nothing leaves, and nothing is remembered."""

from __future__ import annotations

import secrets
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from bidro.algorithms.own_correction import has_own_models
from bidro.deploy.agreed import Agreed
from bidro.deploy.answers import marks_of
from bidro.deploy.job import Job
from bidro.deploy.private_answers import ledger_of
from bidro.deploy.promised import LEDGER
from bidro.deploy.site import approved_for, reply_of
from bidro.deploy.site_config import Site
from bidro.deploy.site_network import federated_fit
from bidro.deploy.site_rows import SiteRows, releases, state_of, training
from bidro.deploy.site_state import DATABASE, KEY_FILE
from bidro.deploy.trained_network import federated_network
from bidro.engines.carrier import InMemory
from bidro.engines.coordinator import Coordinator, Policy
from bidro.engines.record import Record
from bidro.errors import BidroError
from bidro.guarantees.calibration import Limits
from bidro.training import cross_validates, folds_of

T = TypeVar("T")


def on_a_copy(site: Site, look: Callable[[Site], T]) -> T:
    """What is found at the site with a copy of its state, which is forgotten then."""
    state = state_of(site)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "state")
        folder.mkdir(mode=0o700)
        shutil.copy2(state.folder / KEY_FILE, folder / KEY_FILE)
        for name in (DATABASE, LEDGER):
            if (state.folder / name).exists():
                with (
                    closing(sqlite3.connect(state.folder / name)) as kept,
                    closing(sqlite3.connect(folder / name)) as copy,
                ):
                    kept.backup(copy)
        return look(replace(site, state=folder, own=Path(scratch, "own"), approve="always"))


def refusal_of_a_run(site: Site, rows: SiteRows, folds: tuple[int, ...]) -> str | None:
    """Why a run by the site's agreement would end at this site, which offers these numbers of folds; None
    where it would not. The site's state is a copy, which changes."""
    agreed = _of_one_round(rows.agreed)
    here = rows if agreed is rows.agreed else replace(rows, agreed=agreed)
    _forget_what_is_said_again(site, rows)
    spent = None if site.privacy is None else len(ledger_of(site).releases())
    carrier = InMemory({site.client: lambda request: reply_of(site, here, request)})
    job = Job(f"check-{secrets.token_hex(8)}", (site.client,), agreed, Policy())

    def noticed(question: str, *_: object) -> None:
        # What this agreement's first question has been told before, an honest run asks again for nothing.
        if spent is not None and question == "gradients" and len(ledger_of(site).releases()) == spent:
            raise _AnsweredBeforeError

    with Record(site.state / "record") as record, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coordinator = Coordinator(job.run, carrier, record, job.policy, watch=noticed)
        try:
            if agreed.neural_network is not None:
                federated_network(job, coordinator, "")
            else:
                federated_fit(job, coordinator, "")
                _require_folds(site, here, folds)
        except _AnsweredBeforeError:
            return None
        except BidroError as error:
            return str(error).removeprefix(f"Client '{site.client}': ")
    return None


def _require_folds(site: Site, rows: SiteRows, folds: tuple[int, ...]) -> None:
    """Raise BidroError where several sites would be asked about folds, and this one does not allow them: by
    itself it is not asked."""
    agreed = rows.agreed
    if agreed.algorithm is not None or agreed.privacy is not None:
        return
    choices = agreed.fit_options.choices
    if cross_validates(choices, 2, has_own_models(rows.protocol.loss)):
        count, _ = folds_of(min(training(site, rows).sizes), choices, Limits(folds))
        releases(site, rows).folds(marks_of(site, rows, count))


class _AnsweredBeforeError(Exception):
    """The run asks what is in the ledger."""


def _of_one_round(agreed: Agreed) -> Agreed:
    """The agreement, but where one round of training is like another, with one of them."""
    if agreed.neural_network is not None:
        return replace(agreed, neural_network=replace(agreed.neural_network, rounds=1))
    if agreed.algorithm is not None:
        return replace(agreed, algorithm=replace(agreed.algorithm, rounds=1))
    return agreed


def _forget_what_is_said_again(site: Site, rows: SiteRows) -> None:
    """A run by the same agreement over the same table ends at the same model, and what is said of that again
    is no other statement; that of the rehearsal, whose model is of this site alone, stands for it."""
    agreed, table = approved_for(site, rows)
    with state_of(site).transaction() as connection:
        connection.execute("DELETE FROM stated WHERE content LIKE ? || ' %'", (f"{agreed} {table}",))
