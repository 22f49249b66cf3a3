// Sorts texts into kinds, one small question per text: what a small or local model is good for.
//
//   workflow run examples/classify-files.js                                                    # a rehearsal: costs nothing
//   workflow run examples/classify-files.js --agent openai:gpt-5-mini                          # needs OPENAI_API_KEY
//   python -c 'import json, sys; print(json.dumps({"texts": {f: open(f).read() for f in sys.argv[1:]}}))' docs/*.md > texts.json
//   workflow run examples/classify-files.js --args @texts.json --agent openai:gemma@http://127.0.0.1:8080/v1
//
// `args`: `texts` (name → text; three samples without it), `kinds` (the choices), `characters` (how much of a text is shown).
//
// Shape: a classification. The schema is an enumeration, so that an answer is a few tokens and cannot be anything else.

export const meta = {
  name: 'classify-files',
  description: 'Sort texts into kinds, one small question each',
  phases: [{ title: 'Classify', detail: 'one agent per text' }],
}

const SAMPLES = {
  'setup.md': '# Setting up\n\nInstall the package, then run the first command. Each option is explained below.',
  'total.py': 'def total(prices):\n    return sum(price.amount for price in prices)\n',
  'cities.json': '{"cities": [{"name": "Oslo", "people": 709000}, {"name": "Bergen", "people": 291000}]}',
}

const texts = Object.entries(args?.texts ?? SAMPLES)
const kinds = args?.kinds ?? ['documentation', 'source code', 'data']
const shown = args?.characters ?? 600
if (texts.length === 0) return { kinds: {}, unknown: [] }

phase('Classify')
const answers = await parallel(
  texts.map(([name, text]) => () =>
    agent(
      `Which kind of text is this: ${kinds.join(', ')}?\n\nFile name: ${name}\n\n${text.slice(0, shown)}\n\nAnswer with the kind alone.`,
      {
        label: name,
        schema: {
          type: 'object',
          properties: { kind: { enum: kinds } },
          required: ['kind'],
          additionalProperties: false,
        },
      },
    ),
  ),
)

const sorted = {}
const unknown = []
texts.forEach(([name], index) => {
  const kind = answers[index]?.kind
  if (kind === undefined) unknown.push(name)
  else (sorted[kind] ??= []).push(name)
})
log(`${texts.length - unknown.length} of ${texts.length} texts have a kind`)
return { kinds: sorted, unknown }
