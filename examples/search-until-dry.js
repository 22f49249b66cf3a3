// Asks several searchers again and again until two rounds in a row bring nothing new.
//
//   workflow run examples/search-until-dry.js --args '{"question": "How does the engine stop a spinning script?"}'
//   workflow run examples/search-until-dry.js --args @question.json --budget 200000 --agent 'command:...'
//
// Shape: a loop whose length nobody knows in advance, early returns that guard `args`, and a budget.

export const meta = {
  name: 'search-until-dry',
  description: 'Collect distinct answers to a question from several angles until no new ones come',
  whenToUse: 'When one search is not enough and it is unknown how many would be',
}

if (args === undefined || args === null) return { error: 'args is missing: give {"question": "…"}' }
const { question, angles = ['by name', 'by content', 'by history'], maxRounds = 5 } = args
if (typeof question !== 'string' || question.trim() === '') return { error: 'args.question must be a non-empty text' }
if (!Array.isArray(angles) || angles.length === 0) return { error: 'args.angles must name at least one angle' }

const ANSWERS = {
  type: 'object',
  properties: { answers: { type: 'array', items: { type: 'string', minLength: 1 }, maxItems: 20 } },
  required: ['answers'],
}

const found = new Map()
let dry = 0
let round = 0
let stopped = 'nothing new'

while (dry < 2) {
  if (round === maxRounds) {
    stopped = `after ${maxRounds} rounds`
    break
  }
  if (budget.total !== null && budget.remaining() < budget.total / 10) {
    stopped = 'the budget is nearly spent'
    break
  }
  round += 1
  phase(`Round ${round}`)
  const known = [...found.values()].map((answer) => `- ${answer}`).join('\n') || '- nothing yet'
  const results = await parallel(
    angles.map((angle) => () =>
      agent(`${question}\n\nSearch ${angle}. Already known:\n${known}\n\nGive only answers that are not known yet.`, {
        label: `search ${angle}`,
        schema: ANSWERS,
      }),
    ),
  )
  if (results.every((result) => result === null)) return { error: 'every searcher failed', answers: [...found.values()] }

  const before = found.size
  for (const answer of results.filter(Boolean).flatMap((result) => result.answers)) {
    const key = answer.toLowerCase().replace(/\s+/g, ' ').trim()
    if (!found.has(key)) found.set(key, answer)
  }
  dry = found.size === before ? dry + 1 : 0
  log(`round ${round}: ${found.size - before} new, ${found.size} in all`)
}

return { question, rounds: round, stopped, answers: [...found.values()] }
