"""Endpoints that show what there is: the models, one of them, the version."""

from __future__ import annotations

from dataclasses import replace

from quire import __version__
from quire.serve.dialect import Lists, Shows, Tells
from quire.serve.exchange import Exchange
from quire.serve.library import modelfile_of
from quire.serve.service import Service
from quire.types.chat import ModelCard


async def show_all(service: Service, exchange: Exchange, endpoint: Lists) -> None:
    """All models and aliases, or the models that are in memory."""
    if endpoint.only_loaded:
        await exchange.respond(endpoint.encode(await service.models.running_cards()))
        return
    cards = {card.name: card for card in await service.models.cards()}
    for alias, model in service.router.aliases().items():
        cards.setdefault(alias, replace(cards.get(model) or ModelCard(model), name=alias, is_loaded=False))
    await exchange.respond(endpoint.encode(list(cards.values())))


async def show_one(service: Service, exchange: Exchange, endpoint: Shows) -> None:
    """One model, named in the path or in the body."""
    if endpoint.name_of is None:
        name: str = exchange.scope["path_params"]["name"]
    else:
        name = endpoint.name_of(await service.body(exchange))
    model = service.router.aliases().get(name)
    card = await service.models.card(name if model is None else model)
    card = card if model is None else replace(card, name=name)
    await exchange.respond(endpoint.encode(replace(card, modelfile=await modelfile_of(service, name))))


async def tell(service: Service, exchange: Exchange, endpoint: Tells) -> None:
    """Something fixed."""
    await exchange.respond(endpoint.encode(__version__))
