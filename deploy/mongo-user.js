// A user for each service that uses MongoDB, with the right to its own collections. MongoDB's entrypoint runs it on an empty volume,
// after it made the root user. Run it again when a release needs more: what is there gets the rights and the password of now.
const baton = db.getSiblingDB("baton");

function user(name, password, collections) {
  const actions = ["find", "insert", "update", "remove", "createIndex"];
  const privileges = collections.map((collection) => ({ resource: { db: "baton", collection }, actions }));
  const roles = [{ role: name, db: "baton" }];
  if (baton.getRole(name)) baton.updateRole(name, { privileges, roles: [] });
  else baton.createRole({ role: name, privileges, roles: [] });
  if (baton.getUser(name)) baton.updateUser(name, { pwd: password, roles });
  else baton.createUser({ user: name, pwd: password, roles });
}

user("history", process.env.MONGO_HISTORY_PASSWORD, ["jobs", "checkpoints", "lines", "sums"]);
user("quota_billing", process.env.MONGO_BILLS_PASSWORD, ["bills", "use", "use_told"]);
