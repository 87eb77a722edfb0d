"""The history's document store, over the MongoDB wire protocol: real MongoDB, or NX-27017 where nothing is installed.

`store.py` is the only module that imports motor (which is at its end of life: `pymongo.AsyncMongoClient` takes its
place there and nowhere else). It keeps to what both servers do alike:

- `_id` is a string; times are integers (microseconds); values are strings, integers and null.
- Documents are replaced as a whole, in bulk; no `$set`, no `$push`, no dates, no booleans in filters.
- Indexes are on flat fields; filters are equality, `$in` and ranges; sorts are on one integer or text field.

What people filter by are fields of their own; a job's document and events are JSON text in two more. So a label with a
dot or a dollar sign in its name is data like any other, and what is read is parsed by the same models as on the wire.
"""
