"""Endpoints that show what there is: the models, one of them, the version."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qsl

from quire import __version__
from quire.serve.dialect import Lists, Pages, Shows, Tells
from quire.serve.exchange import Exchange
from quire.serve.library import modelfile_of
from quire.serve.service import Service


async def show_all(service: Service, exchange: Exchange, endpoint: Lists) -> None:
    """All models, or those that are in memory."""
    cards = await service.models.cards()
    await exchange.respond(endpoint.encode([card for card in cards if card.is_loaded or not endpoint.only_loaded]))


async def show_page(service: Service, exchange: Exchange, endpoint: Pages) -> None:
    """Some of the models, as the query asks."""
    query = dict(parse_qsl(exchange.scope["query_string"].decode("latin-1")))
    await exchange.respond(endpoint.encode(await service.models.cards(), query))


async def show_one(service: Service, exchange: Exchange, endpoint: Shows) -> None:
    """One model, named in the path or in the body."""
    if endpoint.name_of is None:
        name: str = exchange.scope["path_params"]["name"]
    else:
        name = await service.parsed(exchange, endpoint.name_of)
    card = await service.models.card(name)
    await exchange.respond(endpoint.encode(replace(card, modelfile=await modelfile_of(service, name))))


async def tell(service: Service, exchange: Exchange, endpoint: Tells) -> None:
    """Something fixed."""
    await exchange.respond(endpoint.encode(__version__))
