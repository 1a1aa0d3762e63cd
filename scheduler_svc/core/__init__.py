"""All decisions of the scheduler, without I/O and without a clock: requests and results in, plans out.

    asked      request, images, limits (what can ever fit), rolling, suspicion (who may end workers)
    sequences  sequence, beam_search and beam_round, draft_state; batch, those that run on a worker
    queue      waiting, policies, account and shares (of tenants and users), backlog
    memory     blocks, table, prefix, host, unfinished (prefixes that others compute now)
    a step     planner and its phases/, prefill_budget, step_builder, plan, flight (a plan under way)
    features   capabilities/: samples, beams, drafts, embeddings and others, which phases call
    drafts     drafters, lookup, draft_cost
    workers    scheduler (of one), fleet (of all), router

`state.py` has what the phases of one worker's steps share. `integrity.py` checks that queue, sequences, batch
and blocks agree.
"""
