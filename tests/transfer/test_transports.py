"""The contract of transports, for every file of the folder."""

from __future__ import annotations

import json

import pytest

from quire.transfer.transports.contract import Parcel, all_transports, check_transport, usable_transports
from quire.transfer.transports.shared_memory import FOLDER
from quire.types.setting import BadSetting

pytestmark = pytest.mark.pure


SECONDS = 20.0


@pytest.fixture(params=list(all_transports()))
def transport(request):
    """Every transport that this machine has."""
    found = all_transports()[request.param]
    if why := found.unavailable():
        pytest.skip(why)
    return found


def test_bytes_arrive_and_tickets_are_used_again(transport):
    receiving = transport.receiving(1000)
    sending = transport.sending(receiving.offer, 1000)
    receiving.accept(sending.offer)
    try:
        for number in range(40):
            data = bytes([number]) * (number * 25)
            parcel = sending.put(data)
            assert receiving.take(parcel, len(data), SECONDS) == data
            if parcel.ticket:
                sending.freed(parcel.ticket)
    finally:
        sending.close()
        receiving.close()


def test_a_receiver_that_frees_nothing_stops_the_sender_at_a_bound(transport):
    receiving = transport.receiving(1000)
    sending = transport.sending(receiving.offer, 1000)
    parcels = [sending.put(b"x" * 1000) for _ in range(100)]
    assert all(parcel is None or parcel.ticket or parcel.inline for parcel in parcels)
    assert sum(parcel is not None and bool(parcel.ticket) for parcel in parcels) <= 16
    sending.close()
    receiving.close()


@pytest.mark.parametrize("parcel", [Parcel(b"\xff\xff\xff\xff"), Parcel(b"1"), Parcel(b"\0\0\0\0", b"more"), Parcel()])
def test_a_parcel_that_was_not_sent_is_refused(transport, parcel):
    receiving = transport.receiving(1000)
    with pytest.raises(ValueError):
        receiving.take(parcel, 1001, SECONDS)
    receiving.close()


def test_a_ticket_that_was_not_given_is_refused(transport):
    receiving = transport.receiving(1000)
    sending = transport.sending(receiving.offer, 1000)
    with pytest.raises(ValueError):
        sending.freed(b"\0\0\0\0")
    sending.close()
    receiving.close()


def test_no_file_is_left_behind():
    before = set(FOLDER.glob("quire-*"))
    receiving = all_transports()["shared_memory"].receiving(1000)
    receiving.close()
    assert set(FOLDER.glob("quire-*")) <= before


@pytest.mark.parametrize(
    "change", [{0: "../../etc/passwd"}, {0: "quire-" + "0" * 32}, {1: "00" * 32}, {2: 4}, {3: 1000}]
)
def test_an_offer_of_another_host_or_form_is_not_used(change):
    shared = all_transports()["shared_memory"]
    receiving = shared.receiving(1000)
    offer = json.loads(receiving.offer)
    for place, value in change.items():
        offer[place] = value
    assert shared.sending(json.dumps(offer), 1000) is None
    assert shared.sending("{", 1000) is None and shared.sending("[1, 2]", 1000) is None
    receiving.close()


def test_the_setting_names_the_transports():
    from quire.config import settings

    choices = next(each.choices for each in settings() if each.name == "transport")
    assert set(choices) == {"auto", *all_transports()}
    assert list(usable_transports("auto")) == ["shared_memory", "tcp"] and list(usable_transports("tcp")) == ["tcp"]


def test_a_transport_that_is_missing_is_an_error_only_if_it_is_named(monkeypatch):
    shared = all_transports()["shared_memory"]
    monkeypatch.setattr(shared, "unavailable", lambda: "this system has none")
    with pytest.raises(BadSetting, match="transport is 'shared_memory', but this system has none"):
        check_transport("shared_memory")
    check_transport("auto")
    assert list(usable_transports("auto")) == ["tcp"]
