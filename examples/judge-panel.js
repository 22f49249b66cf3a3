// Several independent attempts at one task, scored by a panel; the best one is improved with what the others did well.
//
//   workflow run examples/judge-panel.js --args '{"task": "Name this project"}'
//
// Shape: fan out, a barrier where one is needed (scores can only be compared when all are there), and one last agent.

export const meta = {
  name: 'judge-panel',
  description: 'Attempt a task from several angles, have every attempt judged, and build on the winner',
  phases: [{ title: 'Attempt' }, { title: 'Judge' }, { title: 'Combine' }],
}

const task = args?.task ?? 'Write a one-sentence description of this project'
const approaches = args?.approaches ?? ['the simplest thing that works', 'what its users fear most', 'from first principles']
const criteria = ['correct', 'clear', 'complete']

const SCORE = {
  type: 'object',
  properties: {
    score: { type: 'number', minimum: 0, maximum: 10 },
    strength: { type: ['string', 'null'], description: 'the one thing worth taking over, if there is any' },
  },
  required: ['score'],
}

phase('Attempt')
const attempts = (
  await parallel(
    approaches.map((approach) => () =>
      agent(`${task}\n\nApproach it thinking of ${approach}.`, { label: `attempt: ${approach}` }).then(
        (text) => text && { approach, text },
      ),
    ),
  )
).filter(Boolean)
if (attempts.length === 0) return { error: 'no attempt succeeded' }
if (attempts.length === 1) return { winner: attempts[0].approach, answer: attempts[0].text, scores: [] }

phase('Judge')
const judged = await parallel(
  attempts.map((attempt) => async () => {
    const marks = await Promise.all(
      criteria.map((criterion) =>
        agent(`How ${criterion} is this answer to “${task}”? Score it from 0 to 10.\n\n${attempt.text}`, {
          label: `${criterion}? ${attempt.approach}`,
          schema: SCORE,
        }),
      ),
    )
    const given = marks.filter(Boolean)
    if (given.length === 0) throw new Error('nobody judged it')
    return {
      ...attempt,
      score: given.reduce((sum, mark) => sum + mark.score, 0) / given.length,
      strengths: given.map((mark) => mark.strength).filter(Boolean),
    }
  }),
)

const ranking = judged.filter(Boolean).sort((a, b) => b.score - a.score)
if (ranking.length === 0) return { error: 'no attempt was judged', attempts }
const [winner, ...others] = ranking
log(`best: ${winner.approach} with ${winner.score.toFixed(1)}`)

phase('Combine')
const strengths = others.flatMap((other) => other.strengths)
const answer =
  strengths.length === 0
    ? winner.text
    : await agent(`${task}\n\nImprove this answer:\n${winner.text}\n\nTake over where it helps:\n- ${strengths.join('\n- ')}`, {
        label: 'combine',
      })

return {
  winner: winner.approach,
  answer: answer ?? winner.text,
  scores: ranking.map(({ approach, score }) => ({ approach, score: Number(score.toFixed(2)) })),
}
