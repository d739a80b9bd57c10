"""Which machine for a step: every machine and batch that is asked for, with the best plan of each.

`automap.advise.picture`  advice as files: all rows as JSON, or a picture of rates over costs
`automap.advise.request`  what is asked: machines, batches, prices and a rate, read from texts
`automap.advise.rows`     what is answered: a row for each machine and batch, and the best of them
`automap.advise.search`   rows by presets first, then by a search where it may change an answer
"""
