"""The ledger: tokens and money of each key, model and day, in SQLite. It survives the gateway's end.

Requests add to a table in memory; once a second a thread adds that to the file. After kill -9 the last second is lost.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quire.config import BadSetting
from quire.serve.access.keys import ApiKey
from quire.types.errors import QuireError

DAY = 86_400.0
TABLE = """CREATE TABLE IF NOT EXISTS spend (key TEXT, model TEXT, day INTEGER, num_requests INTEGER,
prompt_tokens INTEGER, cached_tokens INTEGER, output_tokens INTEGER, money REAL, PRIMARY KEY (key, model, day))"""
ADD = """INSERT INTO spend VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key, model, day) DO UPDATE SET
num_requests = num_requests + excluded.num_requests, prompt_tokens = prompt_tokens + excluded.prompt_tokens,
cached_tokens = cached_tokens + excluded.cached_tokens, output_tokens = output_tokens + excluded.output_tokens,
money = money + excluded.money"""


class BudgetExceeded(QuireError):
    """The API key has spent its budget."""

    code = "budget_exceeded"
    status = 429
    may_retry = False

    def __init__(self, key: str, spent: str, budget: str, period: str, retry_after: float) -> None:
        per = "in all" if period == "total" else f"this {period}"
        super().__init__(f"The key {key} has spent {spent} {per}, and its budget is {budget}. Ask for a larger one.")
        if period != "total":
            self.retry_after = retry_after


@dataclass(slots=True)
class Spend:
    """What was spent."""

    num_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt tokens
    output_tokens: int = 0
    money: float = 0.0

    @property
    def tokens(self) -> int:
        """Of prompts and answers together."""
        return self.prompt_tokens + self.output_tokens

    def add(self, other: Spend) -> None:
        """Add to it."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


ModelDay = tuple[str, int]  # model, day since 1970
Table = dict[str, dict[ModelDay, Spend]]  # by key


class Ledger:
    """Used in the event loop's thread; `save` in another. Only one gateway may use a file."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path).expanduser()
        self._spent: Table = {}
        self._unsaved: Table = {}
        self._lock = threading.Lock()
        if self._path is not None:
            self._load()

    def add(self, key: str, model: str, spend: Spend, now: float) -> None:
        """Record what a request has spent. `now`: seconds since 1970."""
        at = (model, int(now // DAY))
        with self._lock:
            for table in (self._spent, self._unsaved) if self._path is not None else (self._spent,):
                table.setdefault(key, {}).setdefault(at, Spend()).add(spend)

    def spent(self, key: str, period: str, now: float) -> Spend:
        """What a key has spent in the current day or month (of UTC), or in all."""
        first, total = _first_day(period, now), Spend()
        for (_, day), spend in self._spent.get(key, {}).items():
            if day >= first:
                total.add(spend)
        return total

    def check(self, key: ApiKey, now: float) -> None:
        """Raise BudgetExceeded if a key has nothing left."""
        if key.token_budget is None and key.money_budget is None:
            return
        spent = self.spent(key.name, key.budget_period, now)
        wait = _seconds_left(key.budget_period, now)
        if key.token_budget is not None and spent.tokens >= key.token_budget:
            raise BudgetExceeded(
                key.name, f"{spent.tokens:,} tokens", f"{key.token_budget:,} tokens", key.budget_period, wait
            )
        if key.money_budget is not None and spent.money >= key.money_budget:
            raise BudgetExceeded(key.name, f"{spent.money:.4f}", f"{key.money_budget:g}", key.budget_period, wait)

    def report(self, keys: Mapping[str, ApiKey], now: float) -> dict[str, Any]:
        """For GET /v1/spend: what these keys have spent, by model, and what is left of their budgets."""
        return {name: self._of_key(key, now) for name, key in keys.items()}

    def _of_key(self, key: ApiKey, now: float) -> dict[str, Any]:
        models: dict[str, Spend] = {}
        for (model, _), spend in self._spent.get(key.name, {}).items():
            models.setdefault(model, Spend()).add(spend)
        found: dict[str, Any] = {
            period: _shown(self.spent(key.name, period, now)) for period in ("day", "month", "total")
        }
        found["models"] = {model: _shown(spend) for model, spend in sorted(models.items())}
        if key.token_budget is not None or key.money_budget is not None:
            spent = self.spent(key.name, key.budget_period, now)
            left = None if key.token_budget is None else max(0, key.token_budget - spent.tokens)
            money = None if key.money_budget is None else round(max(0.0, key.money_budget - spent.money), 6)
            found["budget"] = {"period": key.budget_period, "tokens_left": left, "money_left": money}
        return found

    def save(self) -> None:
        """Add what is new to the file. Call it in a thread."""
        with self._lock:
            unsaved, self._unsaved = self._unsaved, {}
        if not unsaved or self._path is None:
            return
        rows = [(key, *at, *asdict(spend).values()) for key, spent in unsaved.items() for at, spend in spent.items()]
        with sqlite3.connect(self._path, timeout=10) as connection:
            connection.executemany(ADD, rows)
        connection.close()

    def _load(self) -> None:
        assert self._path is not None
        try:
            with sqlite3.connect(self._path, timeout=10) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute(TABLE)
                for key, model, day, *spent in connection.execute("SELECT * FROM spend"):
                    self._spent.setdefault(key, {})[model, day] = Spend(*spent)
            connection.close()
        except sqlite3.Error as error:
            raise BadSetting(f"The spend file {self._path} cannot be used: {error}.", field="spend_file") from None


def _first_day(period: str, now: float) -> int:
    if period == "total":
        return 0
    return int(now // DAY) - (_day_of_month(now) - 1 if period == "month" else 0)


def _seconds_left(period: str, now: float) -> float:
    end = (now // DAY + 1) * DAY
    while period == "month" and _day_of_month(end) != 1:
        end += DAY
    return end - now


def _day_of_month(now: float) -> int:
    return datetime.fromtimestamp(now, UTC).day


def _shown(spend: Spend) -> dict[str, Any]:
    return {**asdict(spend), "money": round(spend.money, 6)}
