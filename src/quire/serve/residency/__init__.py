"""Which models are loaded, and how a request gets one.

A handler calls `models.Models.using`, which asks a `contract.Residency` for a lease and reads the model's files for the
text side. With one front, the residency is `local.LocalResidency`, in the same process. With several, it lives in the
hub, and each front has a `RemoteResidency` (serve/processes/remote.py) that passes its questions on.

How `LocalResidency` grants a lease:

 1. roster.py finds the model by its name: one from the command line, or one of the store (shelf.py).
 2. The model is measured from its header (engines.py) and fitted into the memory budget (memory.py). Models with the
    same weights share an `EngineSlot`.
 3. The request gets a ticket, and policy.py decides: admit it, load the engine, shrink or unload others, or wait.
 4. `LocalResidency` carries that out. An engine is a child process (engines.py).
 5. The handler uses the engine's client, and releases the lease. The engine stays for its keep-alive.

reports.py and card.py describe models for lists, metrics and the log.
"""
