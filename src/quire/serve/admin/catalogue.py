"""Endpoints that list models, show one of them, or show the version."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qsl

from quire import __version__
from quire.serve.admin.library import stored_modelfile
from quire.serve.dialects.contract import ListEndpoint, PageEndpoint, ShowEndpoint, VersionEndpoint
from quire.serve.http.exchange import Exchange
from quire.serve.service import Service
from quire.types.chat import ModelCard


async def show_all(service: Service, exchange: Exchange, endpoint: ListEndpoint) -> None:
    """All models and aliases, or only the loaded models."""
    if endpoint.only_loaded:
        await exchange.respond(endpoint.encode(await service.models.running_cards()))
        return
    await exchange.respond(endpoint.encode(await _all_cards(service)))


async def _all_cards(service: Service) -> list[ModelCard]:
    """Models, then aliases with the card of their default model."""
    cards = {card.name: card for card in await service.models.cards()}
    for alias, model in service.router.aliases().items():
        cards.setdefault(alias, replace(cards.get(model) or ModelCard(model), name=alias, is_loaded=False))
    return list(cards.values())


async def show_page(service: Service, exchange: Exchange, endpoint: PageEndpoint) -> None:
    """A page of the models and aliases."""
    query = dict(parse_qsl(exchange.scope["query_string"].decode("latin-1")))
    await exchange.respond(endpoint.encode(await _all_cards(service), query))


async def show_one(service: Service, exchange: Exchange, endpoint: ShowEndpoint) -> None:
    """One model, named in the path or in the body."""
    if endpoint.name_of is None:
        name: str = exchange.scope["path_params"]["name"]
    else:
        name = await service.parse_body(exchange, endpoint.name_of)
    model = service.router.aliases().get(name)
    card = await service.models.card(name if model is None else model)
    card = card if model is None else replace(card, name=name)
    await exchange.respond(endpoint.encode(replace(card, modelfile=await stored_modelfile(service, name))))


async def tell_version(service: Service, exchange: Exchange, endpoint: VersionEndpoint) -> None:
    """The version of Quire."""
    await exchange.respond(endpoint.encode(__version__))
