// Map and reduce over text files: which words are common, and in how many files each one occurs.
//
//   workflow run examples/common-words.js --meta @examples/common-words.meta.json --agent 'command:sh' \
//     --args '{"files": ["README.md", "examples/common-words.js"]}'
//
// Shape: a plain body without a header (its meta comes from the caller), early returns that check `args`, one
// agent per file, and a reduction in the script itself.

if (args === undefined) return { error: 'give the files: --args \'{"files": ["README.md"]}\'' }
if (!Array.isArray(args.files)) return { error: 'args.files must be a list of file names' }
const names = [...new Set(args.files)].filter((name) => typeof name === 'string' && name)
if (names.length === 0) return { words: [], files: 0, unreadable: [] }

const top = args.top ?? 10
const minimum = args.minimumLength ?? 5
const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`

phase('Map')
// An agent that failed is null here, and stays at its place.
const tables = await parallel(
  names.map((name) => () =>
    agent(
      `test -r ${quote(name)} || { echo "cannot read it" >&2; exit 1; }
tr -cs 'A-Za-z' '\\n' < ${quote(name)} | tr 'A-Z' 'a-z' | awk 'length($0) >= ${Number(minimum)}' | sort | uniq -c`,
      { label: name },
    ).then((text) => (text === null ? null : [...text.matchAll(/^ *(\d+) ([a-z]+)$/gm)])),
  ),
)

phase('Reduce')
const words = new Map()
for (const table of tables.filter(Boolean)) {
  for (const [, count, word] of table) {
    const entry = words.get(word) ?? { word, count: 0, files: 0 }
    entry.count += Number(count)
    entry.files += 1
    words.set(word, entry)
  }
}
log(`${words.size} different words in ${tables.filter(Boolean).length} files`)

return {
  words: [...words.values()].sort((a, b) => b.count - a.count || (a.word < b.word ? -1 : 1)).slice(0, top),
  files: tables.filter(Boolean).length,
  unreadable: names.filter((_, index) => tables[index] === null),
}
