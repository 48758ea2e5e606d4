"""WHERE: the tagging system, the ILP, the search over group sizes, table sharding, baselines and plans.

==============  ==========================================================================================================
``search``      the plan of a whole job (``job.solve``): shapes, bounds, codecs, what the user demands
``tagging``     the tags of one group: baselines, local search, the integer program
``evaluation``  what a placement of a group costs, without the solver
``tables``      shards of tables on servers
``public``      instances of other planners, in their own objectives
``exports``     plans as tables and pictures
==============  ==========================================================================================================

Each room imports only from those below it. The plan itself, its file and its explanation are modules of this folder.
"""
