// Counts the source files of a project, folder by folder, with standard tools: every agent is a shell pipeline.
//
//   workflow run examples/count-lines.js --agent 'command:sh' --args '{"folders": ["protocol", "worker"]}'
//
// Shape: a pipeline over the folders, and inside it a parallel of independent questions about each folder.

export const meta = {
  name: 'count-lines',
  description: 'Files, lines, longest files and most imported modules of a project, folder by folder',
  whenToUse: 'For a first look at an unfamiliar project',
  phases: [
    { title: 'Look', detail: 'which folders hold source files' },
    { title: 'Count', detail: 'three questions about each folder, at the same time' },
    { title: 'Compare', detail: 'what is true across folders' },
  ],
}

const suffix = args?.suffix ?? 'py'
const quote = (text) => `'${String(text).replaceAll("'", `'\\''`)}'`
const files = (folder) => `find ${quote(folder)} -type f -name ${quote(`*.${suffix}`)} ! -path '*/.*/*'`

const COUNT = {
  type: 'object',
  properties: { files: { type: 'integer', minimum: 0 }, lines: { type: 'integer', minimum: 0 } },
  required: ['files', 'lines'],
  additionalProperties: false,
}

phase('Look')
let folders = args?.folders
if (folders === undefined) {
  const listing = await agent(
    `find . -mindepth 2 -type f -name ${quote(`*.${suffix}`)} ! -path '*/.*/*' | cut -d/ -f2 | sort -u`,
    { label: 'which folders' },
  )
  if (listing === null) return { error: 'the folders could not be listed; run with --agent command:sh' }
  const generated = ['build', 'dist', 'node_modules']
  folders = listing.split('\n').filter((name) => name && !generated.includes(name))
}
if (!Array.isArray(folders) || folders.length === 0) return { error: `no folder holds *.${suffix} files` }
log(`${folders.length} folders: ${folders.join(', ')}`)

phase('Count')
const rows = (text) =>
  (text ?? '')
    .split('\n')
    .map((line) => line.trim().match(/^(\d+)\s+(.+)$/))
    .filter(Boolean)
    .map(([, count, name]) => ({ name, count: Number(count) }))

const counted = await pipeline(
  folders,
  (folder) =>
    parallel([
      () =>
        agent(
          `printf '{"files": %d, "lines": %d}\\n' "$(${files(folder)} | wc -l)" "$(${files(folder)} -exec cat {} + | wc -l)"`,
          { label: `${folder}: size`, schema: COUNT },
        ),
      () =>
        agent(`${files(folder)} -exec wc -l {} + | awk '$2 != "total"' | sort -rn | head -3`, {
          label: `${folder}: longest`,
        }),
      () =>
        agent(
          `${files(folder)} -exec sed -nE 's/^(from|import) +([A-Za-z0-9_]+).*/\\2/p' {} + | sort | uniq -c | sort -k1,1rn -k2 | head -5`,
          { label: `${folder}: imports` },
        ),
    ]),
  ([size, longest, imports], folder) => {
    if (size === null) throw new Error(`${folder} could not be counted`)
    return { folder, ...size, longest: rows(longest), imports: rows(imports) }
  },
)

phase('Compare')
const known = counted.filter(Boolean)
const total = (field) => known.reduce((sum, entry) => sum + entry[field], 0)
const longest = known.flatMap((entry) => entry.longest).sort((a, b) => b.count - a.count)[0] ?? null
log(`${total('files')} files, ${total('lines')} lines`)

return {
  suffix,
  files: total('files'),
  lines: total('lines'),
  longest,
  folders: known.sort((a, b) => b.lines - a.lines),
  notCounted: folders.filter((_, index) => counted[index] === null),
}
