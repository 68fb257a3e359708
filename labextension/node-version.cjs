// Fails where Node.js is too old for the builder, which would stop with a message that says nothing of the version.
const [major, minor] = process.versions.node.split('.').map(Number);
const enough = major > 22 || (major === 22 && minor >= 12) || (major === 20 && minor >= 19);
if (!enough) {
  console.error(`Node.js ${process.versions.node} is too old: 20.19, 22.12 or newer is needed`);
}
process.exit(enough ? 0 : 1);
