// Run once, on an empty volume: a user for each service that uses MongoDB, with the right to its own collections. MongoDB's
// entrypoint made the root user before.
const baton = db.getSiblingDB("baton");

function user(name, password, collections) {
  const actions = ["find", "insert", "update", "remove", "createIndex"];
  const privileges = collections.map((collection) => ({ resource: { db: "baton", collection }, actions }));
  baton.createRole({ role: name, privileges, roles: [] });
  baton.createUser({ user: name, pwd: password, roles: [{ role: name, db: "baton" }] });
}

user("history", process.env.MONGO_HISTORY_PASSWORD, ["jobs", "checkpoints", "lines", "sums"]);
user("quota_billing", process.env.MONGO_BILLS_PASSWORD, ["bills", "use", "use_told"]);
