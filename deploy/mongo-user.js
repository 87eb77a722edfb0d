// Run once, on an empty volume: history's user, for its own database. MongoDB's entrypoint made the root user before.
db.getSiblingDB("baton").createUser({
  user: "history",
  pwd: process.env.MONGO_HISTORY_PASSWORD,
  roles: [{ role: "readWrite", db: "baton" }],
});
