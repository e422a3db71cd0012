"""What keys spend: sums by period, budgets, and a file that survives."""

from __future__ import annotations

import pytest

from quire.config import BadSetting
from quire.gateway.accounts.ledger import DAY, BudgetExceeded, Ledger, Spend
from quire.serve.access.keys import ApiKey

pytestmark = pytest.mark.pure

NOON = 20_000 * DAY + DAY / 2  # 4 October 2024
FEBRUARY = 1_738_368_000.0  # 1 February 2025


def test_spending_is_summed_by_day_month_and_in_all():
    ledger = Ledger(None)
    for now in (NOON, NOON - DAY, NOON - 40 * DAY):
        ledger.add("a", "m", Spend(1, 10, 2, 5, 0.5), now)
    ledger.add("b", "m", Spend(1, 1, 0, 1), NOON)
    assert [ledger.spent("a", period, NOON).tokens for period in ("day", "month", "total")] == [15, 30, 45]
    report = ledger.report({"a": ApiKey("a", token_budget=50, budget_period="total")}, NOON)["a"]
    assert report["total"]["money"] == 1.5 and report["models"]["m"]["num_requests"] == 3
    assert report["budget"] == {"period": "total", "tokens_left": 5, "money_left": None}


def test_a_key_that_has_spent_its_budget_is_refused_until_the_period_ends():
    ledger = Ledger(None)
    key = ApiKey("a", token_budget=15, budget_period="day")
    ledger.check(key, NOON)
    ledger.add("a", "m", Spend(1, 10, 0, 5), NOON)
    with pytest.raises(BudgetExceeded) as caught:
        ledger.check(key, NOON)
    assert caught.value.retry_after == DAY / 2 and "15 tokens" in caught.value.public
    ledger.check(key, NOON + DAY)
    ledger.check(ApiKey("a"), NOON)


def test_money_is_a_budget_too_and_a_month_ends_with_the_calendar():
    ledger = Ledger(None)
    key = ApiKey("a", money_budget=1.0)
    ledger.add("a", "m", Spend(1, 1, 0, 1, 1.25), FEBRUARY)
    with pytest.raises(BudgetExceeded) as caught:
        ledger.check(key, FEBRUARY)
    assert caught.value.retry_after == 28 * DAY
    with pytest.raises(BudgetExceeded) as caught:
        ledger.check(ApiKey("a", money_budget=1.0, budget_period="total"), FEBRUARY + 400 * DAY)
    assert not hasattr(caught.value, "retry_after")


def test_a_file_keeps_what_was_spent(tmp_path):
    path = str(tmp_path / "spend.db")
    first = Ledger(path)
    for _ in range(2):
        first.add("a", "m", Spend(1, 10, 2, 5, 0.5), NOON)
        first.save()
    first.save()
    assert Ledger(path).spent("a", "total", NOON) == Spend(2, 20, 4, 10, 1.0)


def test_a_file_that_is_no_ledger_is_refused(tmp_path):
    (tmp_path / "spend.db").write_text("no database, " * 100)
    with pytest.raises(BadSetting, match="spend file"):
        Ledger(str(tmp_path / "spend.db"))
